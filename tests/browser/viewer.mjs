// Drives the viewer in a real browser: node viewer.mjs <modules> <browser> <url> <folder> <report>
// Prints a line for each step, and ends with status 1 at the first that does not hold.

import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, readFileSync, renameSync, rmdirSync } from "node:fs";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, folder, report] = process.argv.slice(2);
const { open, run, checkAccess } = await begin(modules, executablePath, url);

const rowsOf = (page) => page.locator(".table-view [role=status]");
const rows = async (page, text) => {
  await rowsOf(page).filter({ hasText: text }).waitFor();
};

const steps = {
  async "the table shows every rollout"(page) {
    await rows(page, "14 of 14 rows");
    assert.equal(await page.locator("tbody tr").count(), 14);
  },
  async "a narrow window holds the page"(page) {
    await page.setViewportSize({ width: 400, height: 800 });
    const excess = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.equal(excess, 0);
    await page.setViewportSize({ width: 1280, height: 800 });
  },
  async "a filter is applied, and stands in the address"(page) {
    await page.fill("input[name=where]", "reward == 0 and 'two' in text");
    await page.keyboard.press("Enter");
    await rows(page, "3 of 14 rows");
    assert.match(page.url(), /where=reward/);
    const other = await open(page.url());
    await rows(other, "3 of 14 rows");
    await other.close();
  },
  async "a wrong filter says what is wrong"(page) {
    await page.fill("input[name=where]", "rewrd < 1");
    await page.keyboard.press("Enter");
    await page.locator("[role=alert]", { hasText: "did you mean 'reward'?" }).waitFor();
    await page.fill("input[name=where]", "reward == 0 and 'two' in text");
    await page.keyboard.press("Enter");
    await rows(page, "3 of 14 rows");
  },
  async "keys open a rollout and step within the filter"(page) {
    await page.keyboard.press("Enter");
    await page.locator(".steps", { hasText: "1 of 3" }).waitFor();
    await page.keyboard.press("ArrowRight");
    await page.locator(".steps", { hasText: "2 of 3" }).waitFor();
    await page.locator(".item.assistant", { hasText: "It is two." }).first().waitFor();
  },
  async "a label is set, shown in the table and kept in the file"(page) {
    await page.fill("input[name=label]", "bug");
    await page.fill("input[name=note]", "counts wrongly");
    await page.locator(".labels button", { hasText: "add" }).click();
    await page.locator(".chip", { hasText: "bug – counts wrongly" }).waitFor();
    assert.match(readFileSync(join(folder, "before.d", "labels.jsonl"), "utf8"), /"label":"bug"/);
    await page.keyboard.press("Escape");
    await page.locator("td.column-labels", { hasText: "bug" }).waitFor();
  },
  async "two readers see each other's labels, and a label that is not sent stays in its field"(page) {
    await page.locator("tbody tr").first().click();
    await page.locator("main.rollout").waitFor();
    const other = await open(page.url());
    await other.fill("input[name=label]", "from another");
    await other.keyboard.press("Enter");
    await page.locator(".chip", { hasText: "from another" }).waitFor();
    await other.close();
    await page.fill("input[name=note]", "of no label");
    await page.locator(".labels button", { hasText: "add" }).click();
    assert.equal(await page.inputValue("input[name=note]"), "of no label");
    await page.keyboard.press("Escape"); // typed into the field
    await page.locator("h1").click();
    await page.keyboard.press("Escape");
    await page.locator("main.table-view").waitFor();
  },
  async "a group merges equal answers and compares two"(page) {
    await page.locator("tbody tr").first().click();
    await page.locator("main.rollout").waitFor();
    await page.keyboard.press("t");
    await page.locator("main.group", { hasText: "3 rollouts, 2 different answers" }).waitFor();
    await page.locator(".member", { hasText: "× 2" }).waitFor();
    for (const box of await page.locator(".member input[type=checkbox]").all()) await box.check();
    await page.locator(".difference ins").first().waitFor();
    await page.locator(".difference del").first().waitFor();
    await page.locator("h1").click();
    await page.keyboard.press("Escape");
    await page.locator("main.table-view").waitFor();
  },
  async "Enter opens the menu of columns, and no rollout"(page) {
    await page.locator(".columns summary").focus();
    await page.keyboard.press("Enter");
    await page.locator(".columns[open]").waitFor();
    await page.locator("main.table-view").waitFor();
  },
  async "two files are compared, and a flip leads to its rollouts"(page) {
    await page.getByRole("button", { name: "Compare" }).click();
    await page.locator(".conclusion").waitFor();
    await page.selectOption("select[aria-label='first file']", "before.jsonl");
    await page.selectOption("select[aria-label='second file']", "after.jsonl");
    await page.locator(".flips tbody tr").first().waitFor();
    await page.locator(".flips button", { hasText: "second answers" }).first().click();
    await page.locator("main.group").waitFor();
  },
  async "two files are compared by the rewards of groups"(page) {
    await page.goto(`${url}/?view=compare&first=before.jsonl&second=after.jsonl`);
    await page.selectOption("select[aria-label='reward']", "group_reward");
    await page.locator("th", { hasText: "group reward" }).waitFor();
    await page.locator(".flips .reward", { hasText: "0.5" }).first().waitFor();
    assert.match(page.url(), /by=group_reward/);
  },
  async "plots are drawn, and a bar narrows the filter"(page) {
    await page.goto(`${url}/?view=plots`);
    await page.locator(".plot canvas").first().waitFor();
    await page.locator("figure", { hasText: "Reward" }).first().locator(".bar-column").first().click();
    await page.locator("main.table-view").waitFor();
    assert.match(decodeURIComponent(page.url()), /where=reward/);
  },
  async "a tool call stands beside its output"(page) {
    await page.goto(`${url}/?where=num_tool_calls > 0 or "tea" in text`);
    await page.goto(`${url}/?search=stock`);
    await page.locator("tbody tr").first().click();
    await page.locator(".call .output").first().waitFor();
    assert.match(await page.locator(".item.tools h3").first().textContent(), /tool call: stock/);
  },
  async "a file that grows is followed"(page) {
    await page.goto(url);
    await rows(page, "14 of 14 rows");
    const line = readFileSync(join(folder, "before.jsonl"), "utf8").split("\n")[0];
    appendFileSync(join(folder, "before.jsonl"), `${line.replace('"rollout_index": 0', '"rollout_index": 77')}\n`);
    await rows(page, "15 of 15 rows");
  },
  async "a file that cannot be read is said, and the others are shown"(page) {
    renameSync(join(folder, "after.jsonl"), join(folder, "after.txt"));
    mkdirSync(join(folder, "after.jsonl"));
    await page.locator(".warning", { hasText: "after.jsonl: cannot be read: Is a directory" }).waitFor();
    await rows(page, "15 of 15 rows");
    rmdirSync(join(folder, "after.jsonl"));
    renameSync(join(folder, "after.txt"), join(folder, "after.jsonl"));
    await page.locator(".warning").waitFor({ state: "detached" });
  },
  async "a long field of a task has the width of the page"(page) {
    await page.goto(`${url}/?where=task_id == "0000000000000003" and file == "before.jsonl"`);
    await page.locator("tbody tr").first().click();
    const field = page.locator(".fields .text", { hasText: "a long field" });
    const [text, more] = [await field.boundingBox(), await field.locator(".more").boundingBox()];
    assert.ok(more.x - text.x < 10, `the button stands at ${more.x}, the text at ${text.x}`);
  },
  async "hostile answers do nothing"(page) {
    for (const search of ["pwned", "20 MB"]) {
      await page.goto(`${url}/?search=${search}`);
      await rows(page, "1 of 15 rows");
      await page.locator("tbody tr").first().click();
      await page.locator(".item.assistant .text").first().waitFor();
      await page.locator(".raw summary").click();
      await page.keyboard.press("t");
      await page.locator(".member .text").first().waitFor();
      assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
      assert.equal(await page.locator("a[href^='javascript:']").count(), 0);
      assert.equal(await page.locator("#page script, #page iframe, #page object").count(), 0);
    }
  },
  async "a random order and a jump to a task"(page) {
    await page.goto(url);
    await rows(page, "15 of 15 rows");
    await page.getByRole("button", { name: "random sample" }).click();
    await page.waitForURL(/sort=~|sort=%7E/);
    await page.fill("input[name=task]", "0000000000000002");
    await page.keyboard.press("Enter");
    await rows(page, "2 of 15 rows");
  },
  async "a static report works without a server"() {
    const page = await open(`file://${report}`);
    await page.locator("tbody tr").first().click();
    await page.locator("main.rollout").waitFor();
    await page.keyboard.press("t");
    await page.locator("main.group").waitFor();
    await page.getByRole("button", { name: "Plots" }).click();
    await page.locator(".plot canvas").first().waitFor();
    await checkAccess(page, "the report");
    await page.close();
  },
  async "axe-core finds no serious fault, light and dark"(page) {
    const places = { table: "?column=reward", rollout: "", group: "", plots: "?view=plots", compare: "?view=compare" };
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      for (const [name, address] of Object.entries(places)) {
        await page.goto(`${url}/${address}`);
        if (name === "rollout" || name === "group") {
          await page.locator("tbody tr").first().click();
          await page.locator("main.rollout").waitFor();
        }
        if (name === "group") await page.keyboard.press("t");
        await page.locator(`main.${{ table: "table-view" }[name] ?? name}`).waitFor();
        await page.waitForTimeout(300);
        await checkAccess(page, `${name}, ${scheme}`);
      }
    }
  },
};

await run(steps, await open(url));
