// What stays in its place while files change, and the page of a report: node changes.mjs <modules> <browser> <url> <folder> <report>

import assert from "node:assert/strict";
import { appendFileSync, readFileSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, folder, report] = process.argv.slice(2);
const { open, run } = await begin(modules, executablePath, url, { watched: /^(?!file:)http/ });

const rows = (page, text) => page.locator(".table-view [role=status]", { hasText: text }).waitFor();
const chosen = (page) => page.locator("tbody tr.selected");

const steps = {
  async "a folder shows a file that begins with a failure"(page) {
    await rows(page, "408 of 408 rows");
    await page.goto(`${url}/?where=file == "joined.jsonl"`);
    await rows(page, "5 of 408 rows");
  },
  async "Esc returns to the row of the table, also far down"(page) {
    await page.goto(`${url}/?where=file == "many.jsonl"`);
    await rows(page, "400 of 408 rows");
    await page.keyboard.press("End");
    for (const key of ["k", "k", "k"]) await page.keyboard.press(key);
    const id = await chosen(page).locator(".column-task_id", { hasText: /^[0-9a-f]{16}$/ }).textContent();
    await page.keyboard.press("Enter");
    await page.locator("main.rollout .steps", { hasText: "397 of 400" }).waitFor();
    await page.keyboard.press("Escape");
    await chosen(page).locator(".column-task_id", { hasText: id }).waitFor();
  },
  async "an open rollout is not asked for again while another file grows"(page) {
    await page.keyboard.press("Enter");
    await page.locator("main.rollout .steps", { hasText: "397 of 400" }).waitFor();
    let asked = 0;
    page.on("request", (request) => (asked += request.url().includes("/api/rollout")));
    const grown = async (number) => {
      const line = readFileSync(join(folder, "few.jsonl"), "utf8").split("\n")[0];
      const followed = page.waitForResponse((reply) => reply.url().includes("/api/neighbours"));
      appendFileSync(join(folder, "few.jsonl"), `${line.replace('"rollout_index": 0', `"rollout_index": ${number}`)}\n`);
      await followed;
    };
    for (const number of [78, 79]) await grown(number);
    assert.equal(asked, 0);
  },
  async "a file that is removed is said, with its rows"(page) {
    unlinkSync(join(folder, "few.jsonl"));
    await page.locator(".warning", { hasText: "few.jsonl: the file was removed, and 5 rows with it" }).waitFor();
  },
  async "figures of many rows say how far they are"() {
    const page = await open("about:blank");
    const state = async (route) => {
      const reply = await route.fetch();
      await route.fulfill({ response: reply, json: { ...(await reply.json()), is_complete: false, progress: 0.3, rows: 1000000 } });
    };
    await page.route("**/api/state*", state);
    let release;
    const held = new Promise((done) => (release = done));
    await page.route("**/api/plots*", (route) => held.then(() => route.continue()));
    const said = (text) => page.locator(".note[role=status]", { hasText: text });
    await page.goto(`${url}/?view=plots`);
    await said("Counting 1,000,000 rows…").waitFor();
    release();
    await page.locator(".plot canvas").first().waitFor();
    await said("the 1,000,000 rows read so far: 30 % of the files").waitFor();
    await page.unroute("**/api/state*", state);
    await page.reload();
    await page.locator(".plot canvas").first().waitFor();
    await said("read so far").waitFor({ state: "detached" });
    await page.close();
  },
  async "a report has examples of each file, and k stands where it belongs"() {
    const page = await open(`file://${report}`);
    const parts = page.locator("h2", { hasText: "Examples" });
    await parts.waitFor();
    const names = await page.locator("h2:text('Examples') ~ h3").allTextContents();
    assert.deepEqual(names.slice(0, 2).map((name) => name.split("/").at(-1)), ["few.jsonl", "joined.jsonl"]);
    const at = async (k) => Number(await page.locator("svg text", { hasText: new RegExp(`^k = ${k}$`) }).first().getAttribute("x"));
    const [one, two, three, four] = [await at(1), await at(2), await at(3), await at(4)];
    assert.ok(Math.abs(four - two - (two - one)) < 1, "a step of the axis is a factor");
    assert.ok(Math.abs((three - one) / (four - one) - Math.log(3) / Math.log(4)) < 0.01, `k = 3 stands at ${three}`);
    await page.close();
  },
};

await run(steps, await open(url));
