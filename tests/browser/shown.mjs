// Checks that the pages show what is in the files: node shown.mjs <modules> <browser> <url> <pictures>
// Any error in the console fails the step. Pictures of the pages are written to the last folder, if it is named.

import assert from "node:assert/strict";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, pictures] = process.argv.slice(2);
const { open, run, problems } = await begin(modules, executablePath, url, { failsOnConsole: true });

const addressOf = (where) => `${url}/?where=${encodeURIComponent(where)}`;

async function openRollout(page, where) {
  await page.goto(addressOf(where));
  await page.locator("tbody tr").first().click();
  await page.locator("main.rollout .head").waitFor();
}

async function photograph(page, name) {
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });
}

/** The pairs of a page: what each call asks and what its output says. */
const calls = (page) =>
  page.locator(".item.tools .call").evaluateAll((found) =>
    found.map((each) => [each.querySelector(":scope > .asked").innerText, each.querySelector(".output").innerText]),
  );

/** Everything that waits for an answer has it: two frames without a change. */
const settle = async (page) => {
  await page.locator("header.top").waitFor();
  await page.locator("main").first().waitFor();
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
};

const PAGES = {
  table: "/",
  histogram: "/?column=reward",
  names: "/?column=status",
  plots: "/?view=plots",
  compare: "/?view=compare&first=one.jsonl&second=two.jsonl",
  rollout: "/?view=rollout&file=one.jsonl&task_id=0000000000000001&agent=solver&rollout_index=0",
  tools: "/?view=rollout&file=one.jsonl&task_id=0000000000000009&agent=solver&rollout_index=0",
  failed: "/?view=rollout&file=one.jsonl&task_id=0000000000000001&agent=solver&rollout_index=5",
  group: "/?view=group&file=one.jsonl&task_id=0000000000000001&agent=solver&rollout_index=0",
};

const KEYS = [
  ..."?/fjkgnNortcl",
  ...["Escape", "Enter", "Tab", "Space", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"],
  ...["PageUp", "PageDown", "Home", "End"],
];

const PRESSED = "button:not([disabled]), summary, input[type=checkbox], label input, select, .members a";

const steps = {
  async "the help opens and closes, and the page goes on"(page) {
    await page.locator("tbody tr").first().waitFor();
    for (const press of [() => page.keyboard.press("?"), () => page.getByRole("button", { name: "keys" }).click()]) {
      await press();
      await page.locator(".help code", { hasText: 'reward < 0.5 and finish_reason == "length"' }).waitFor();
      await photograph(page, "help");
      await press();
      await page.locator(".help").waitFor({ state: "detached" });
    }
    await page.getByRole("button", { name: "Plots" }).click();
    await page.locator("main.plots").waitFor();
  },
  async "calls that share an id have their own outputs"(page) {
    await openRollout(page, 'task_id == "0000000000000008"');
    const found = (await calls(page)).map(([asked, said]) => [Number(/n\s+(\d+)/.exec(asked)[1]), said.split("\n").at(-1)]);
    assert.deepEqual(found, [[0, "zero"], [1, "one"], [2, "two"], [3, "This call has no output."]]);
    assert.equal(await page.locator(".item.tools").count(), 4, "no output stands alone");
  },
  async "tools of the endpoint have the output that is on their item"(page) {
    await openRollout(page, 'task_id == "0000000000000009"');
    const heads = await page.locator(".item.tools h3").allTextContents();
    const texts = await calls(page);
    const shown = Object.fromEntries(heads.map((head, at) => [head.replace("tool call: ", "").replace(/ *copy the call.*/, ""), texts[at]]));
    const expected = {
      "deepwiki / ask_question": ["tabs", "MCP says: spaces"],
      "deepwiki / broken": ["{}", "the server is away"],
      "deepwiki / mcp_list_tools": ["", "ask_question"],
      code_interpreter_call: ["print(6 * 7)", "42"],
      file_search_call: ["which file", "notes.txt"],
      web_search_call: ["weather in Oslo", "This call has no output."],
      local_shell_call: ["ls /tmp", "a.txt"],
      shell_call: ["make", "all good"],
      apply_patch_call: ["a.py", "patched"],
      grep: ["needle", "hay: needle"],
    };
    for (const [name, [asked, said]] of Object.entries(expected)) {
      assert.ok(shown[name], `${name} is not among ${Object.keys(shown)}`);
      assert.ok(shown[name][0].includes(asked), `${name} asks ${shown[name][0]}`);
      assert.ok(shown[name][1].includes(said), `${name} says ${shown[name][1]}`);
    }
    assert.match(shown.shell_call[1], /exit code 2/);
    const image = page.locator(".item.tools img.picture");
    assert.equal(await image.count(), 4, "of a plot, a screenshot, a generation and an output of a function");
    for (const each of await image.all()) assert.ok((await each.evaluate((one) => one.naturalWidth)) > 0);
    await photograph(page, "tools");
  },
  async "a failed rollout shows its task and the turns that are stored"(page) {
    await openRollout(page, 'status == "failed" and task_index == 1');
    await page.locator(".item.user", { hasText: "How much is 1?" }).waitFor();
    await page.locator(".note", { hasText: "2 turns of this rollout are stored" }).waitFor();
    assert.deepEqual((await calls(page)).map(([asked]) => Number(/n\s+(\d+)/.exec(asked)[1])), [1, 2]);
    await page.locator(".output", { hasText: "counted one" }).waitFor();
    await page.locator(".fields", { hasText: "expected_answer" }).waitFor();
    await photograph(page, "failed");
    await openRollout(page, 'status == "failed" and task_index == 12');
    await page.locator(".item.user", { hasText: "Only in the input" }).waitFor();
    await page.locator(".note", { hasText: "There is no response. No turn of it is stored." }).waitFor();
    await openRollout(page, 'status == "failed" and task_index == 40');
    await page.locator(".note", { hasText: "The task is not in" }).waitFor();
  },
  async "each point of the scatter is there, and opens its own rollout"(page) {
    await page.goto(`${url}/?view=plots`);
    await page.locator(".scatter circle").first().waitFor();
    const points = await page.locator(".scatter circle").evaluateAll((found) => found.map((each) => each.querySelector("title").textContent));
    const rewards = points.filter((each) => each.includes("500 tokens")).map((each) => Number(/reward ([\d.]+)/.exec(each)[1]));
    assert.deepEqual(rewards.sort(), [0.1, 0.2, 0.3, 0.4, 0.5], "five rollouts have the most tokens");
    for (const reward of [0.1, 0.3, 0.5]) {
      await page.goto(`${url}/?view=plots`);
      await page.locator(".scatter circle", { hasText: `500 tokens, reward ${reward}` }).click({ force: true });
      await page.locator("main.rollout .reward", { hasText: `reward ${reward}` }).waitFor();
    }
    await page.goto(`${url}/?view=plots`);
    await page.locator(".scatter circle", { hasText: "rollouts" }).first().click({ force: true });
    await page.locator("main.table-view").waitFor();
    assert.match(new URL(page.url()).searchParams.get("where"), /^output_tokens == \d+ and reward == \d/);
  },
  async "plots tell the files apart"(page) {
    await page.goto(`${url}/?view=plots`);
    await page.locator(".plot canvas").first().waitFor();
    const names = await page.locator(".plots > .legend span").allTextContents();
    assert.deepEqual(names.map((each) => each.trim()), ["one.jsonl", "two.jsonl"]);
    const legend = await page.locator(".u-legend .u-label").allTextContents();
    assert.deepEqual(legend.slice(1), ["one.jsonl", "two.jsonl"]);
    const title = await page.locator("figure", { hasText: "Reward" }).first().locator(".bar-column").last().getAttribute("title");
    assert.match(title, /one\.jsonl: \d+, two\.jsonl: \d+/);
    assert.ok((await page.locator(".scatter .series-1").count()) > 0);
    await photograph(page, "plots");
    await page.emulateMedia({ colorScheme: "dark" });
    await page.reload();
    await page.locator(".plot canvas").first().waitFor();
    await photograph(page, "plots_dark");
    await page.emulateMedia({ colorScheme: "light" });
    await page.goto(`${url}/?column=reward`);
    await page.locator(".histogram .legend").waitFor();
    await photograph(page, "histogram");
  },
  async "every key works on every page"(page) {
    for (const [name, address] of Object.entries(PAGES)) {
      for (const key of KEYS) {
        await page.goto(`${url}${address}`);
        await settle(page);
        await page.keyboard.press(key);
        await settle(page);
        assert.deepEqual(problems, [], `${key} on the page ${name}`);
      }
    }
  },
  async "every button works on every page"(page) {
    for (const [name, address] of Object.entries(PAGES)) {
      await page.goto(`${url}${address}`);
      await page.locator(name === "group" ? ".member" : "main").first().waitFor();
      await settle(page);
      const total = await page.locator(PRESSED).count();
      for (let at = 0; at < total; at += 1) {
        await page.evaluate(() => localStorage.clear()); // the columns that were chosen
        await page.goto(`${url}${address}`);
        await page.locator(PRESSED).nth(at).waitFor({ state: "attached" });
        const pressed = page.locator(PRESSED).nth(at);
        await pressed.evaluate((each) => !each.matches("summary") && each.closest("details")?.setAttribute("open", ""));
        const what = await pressed.evaluate((each) => each.outerHTML.slice(0, 120));
        await pressed.click();
        await settle(page);
        assert.deepEqual(problems, [], `${what} on the page ${name}`);
      }
    }
  },
};

await run(steps, await open(url));
