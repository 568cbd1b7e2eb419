// Drives the pages of agentic rollouts: node agentic.mjs <modules> <browser> <url> <folder> <pictures>

import assert from "node:assert/strict";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, , pictures] = process.argv.slice(2);
const { open, run, checkAccess } = await begin(modules, executablePath, url, { failsOnConsole: true });

const FAULTS = {
  1: ["turn", 41, "there is no parameter"],
  2: ["turn", 56, "AssertionError: 1 != 2"],
  3: ["turn", 32, "repeated 6 times"],
  4: ["turn", 63, "[truncated 90000 characters]"],
  5: ["turn", 71, "tests/test_app.py"],
  6: ["turn", 21, "lib/other.py"],
  7: ["turn", 100, "I give up."],
  8: ["verdict", 0, "The program crashes at once"],
  9: ["turn", 81, "503 Service Unavailable"],
  10: ["turn", 51, "the prompt shrank"],
};

const rolloutAt = (task, more = "") =>
  `${url}/?view=rollout&file=faults.jsonl&task_id=${task.toString(16).padStart(16, "0")}&agent=solver&rollout_index=0${more}`;

async function openRollout(page, task, more) {
  await page.goto("about:blank");
  await page.goto(rolloutAt(task, more));
  await page.locator("main.rollout .head").waitFor();
}

const inSight = (page, locator) =>
  page.waitForFunction((each) => {
    const { top, bottom } = each.getBoundingClientRect();
    return top >= 40 && bottom <= innerHeight + 4;
  }, locator);

const scrolled = (page) => page.locator("main.rollout").evaluate((each) => each.scrollTop);

const steps = {
  async "each planted fault is in sight after one key"(page) {
    for (const [task, [kind, turn, text]] of Object.entries(FAULTS)) {
      await openRollout(page, Number(task));
      await page.keyboard.press("n");
      const found = page.locator(kind === "turn" ? `[data-turn="${turn}"] .turn-body` : ".explanation").getByText(text).first();
      await found.waitFor();
      await inSight(page, await found.elementHandle());
      if (pictures) await page.screenshot({ path: join(pictures, `fault-${task}.png`) });
    }
  },
  async "only the turns in sight are drawn, and keys scroll to the end"(page) {
    await openRollout(page, 1);
    assert.ok((await page.locator(".turn").count()) < 60);
    for (const key of ["PageDown", "Space"]) {
      const before = await scrolled(page);
      await page.keyboard.press(key);
      await page.waitForFunction((at) => document.querySelector("main.rollout").scrollTop > at, before);
    }
    await page.keyboard.press("End");
    await page.locator('[data-turn="100"]').waitFor();
  },
  async "a rollout has its answer beside the right one, and a turn its time, tokens and cost"(page) {
    await openRollout(page, 1);
    assert.equal(await page.locator(".verdict dl").innerText(), "extracted_answer\n1\nexpected_answer\n1");
    assert.equal(await page.locator('[data-turn="3"] .turn-figures').textContent(), "1.7 s · 42 tok · $0.002");
    const said = await page.locator(".lanes title").nth(2).textContent();
    assert.match(said, /^turn 3, bash, model 1.2 s, tool 500 ms, context 1,200 tokens, 900 cached, 42 tokens out, \$0.002$/);
  },
  async "j, k, o and g move by turn, and the address names it"(page) {
    await openRollout(page, 1);
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    await page.locator('[data-turn="2"].current').waitFor();
    await page.keyboard.press("k");
    await page.keyboard.press("o");
    await page.locator('[data-turn="1"].current .turn-body').waitFor();
    await page.keyboard.press("g");
    await page.keyboard.type("77");
    await page.keyboard.press("Enter");
    await page.locator('[data-turn="77"] .turn-body').waitFor();
    assert.match(page.url(), /#turn=77$/);
    await openRollout(page, 1, "#turn=88");
    const linked = page.locator('[data-turn="88"] .turn-body .output');
    await linked.waitFor();
    await inSight(page, await linked.elementHandle());
  },
  async "c shows the request and the response of a turn as JSON"(page) {
    await openRollout(page, 1);
    for (const key of ["j", "j", "c"]) await page.keyboard.press(key);
    const call = page.getByRole("region", { name: "raw call of turn 2" });
    await call.getByText("Rebuilt from the line").waitFor();
    await call.getByText(/"model": "m"/).first().waitFor();
    await call.getByText(/"function_call_output"/).first().waitFor();
    await checkAccess(page, "a raw call");
    if (pictures) await page.screenshot({ path: join(pictures, "raw-call.png") });
    await page.keyboard.press("c");
    await call.waitFor({ state: "detached" });
  },
  async "a search inside counts, marks and steps"(page) {
    await openRollout(page, 1);
    await page.keyboard.press("/");
    await page.keyboard.type("sed -n 9");
    await page.keyboard.press("Enter");
    await page.locator(".inside [role=status]", { hasText: "1 of 10" }).waitFor();
    await page.getByRole("button", { name: "next place" }).click();
    await page.locator('[data-turn="91"] .turn-body').waitFor();
    await page.waitForFunction(() => CSS.highlights.get("found")?.size > 0);
  },
  async "the end of a long output is shown, and its middle on demand"(page) {
    await openRollout(page, 11, "#turn=1");
    await page.locator(".output .text", { hasText: "the last words" }).waitFor();
    await page.fill("input[name=inside]", "needle in the middle");
    await page.keyboard.press("Enter");
    await page.locator(".inside [role=status]", { hasText: "1 of 1" }).waitFor();
    await page.locator(".output .text", { hasText: "needle in the middle" }).waitFor();
  },
  async "text is rendered, raw text is a key away, and hostile text does nothing"(page) {
    await openRollout(page, 12);
    await page.locator(".turn-body .rich strong", { hasText: "bold" }).waitFor();
    await page.locator(".turn-body .rich math").first().waitFor();
    await page.locator(".turn-body .rich table td").first().waitFor();
    await page.locator(".turn-body .rich .hljs-keyword").first().waitFor();
    await page.locator(".turn-body .ansi-1", { hasText: "red" }).waitFor();
    await page.locator(".turn-body .tree-name", { hasText: "answer" }).waitFor();
    await page.locator(".turn-body .diff-added", { hasText: "new line" }).first().waitFor();
    await page.getByText("⟦U+202E⟧").first().waitFor();
    assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
    const bad = "#page script, #page iframe, #page object, #page form[action], #page style, .rich img, .rich svg, a[href^='javascript:'], a[href^='data:']";
    assert.equal(await page.locator(bad).count(), 0);
    if (pictures) await page.screenshot({ path: join(pictures, "rendered.png"), fullPage: true });
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      await checkAccess(page, `a rendered rollout, ${scheme}`);
    }
    await page.emulateMedia({ colorScheme: "light" });
    await page.keyboard.press("r");
    await page.locator(".turn-body .text", { hasText: "**bold**" }).first().waitFor();
  },
  async "failed tests come first, and a quote leads to its place"(page) {
    await openRollout(page, 13);
    assert.match(await page.locator(".tests li").first().textContent(), /failed.*test_b/);
    await page.locator(".quote", { hasText: "line 60 of src/app.py" }).click();
    await page.locator('[data-turn="61"] .turn-body').waitFor();
    await checkAccess(page, "a verdict");
  },
  async "commands of every kind of shell have colours and their line breaks"(page) {
    await openRollout(page, 12);
    for (const [keyword, command] of [["for", "stat $each"], ["if", "id"], ["while", "nproc"]]) {
      const shown = page.locator(".asked .text.code", { hasText: command }).filter({ has: page.locator(".hljs-keyword", { hasText: keyword }) });
      assert.match(await shown.innerText(), new RegExp(`^${keyword} .*\\n  ${command.replace("$", "\\$")}\\n`));
    }
  },
  async "what pytest wrote is a list of tests, and a patch is a diff"(page) {
    await openRollout(page, 14);
    assert.match(await page.locator(".tests li").first().textContent(), /failed.*test_b.*it is old/s);
    await page.locator(".explanation .diff-added", { hasText: "+new" }).waitFor();
    const tests = await page.locator(".tests").boundingBox();
    assert.ok(tests.y < (await page.locator(".explanation .diff-added").boundingBox()).y);
  },
  async "the page is printed whole"(page) {
    await openRollout(page, 1);
    await page.emulateMedia({ media: "print" });
    await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
    await page.waitForFunction(() => document.querySelectorAll(".turn-body").length === 100);
    assert.ok((await page.evaluate(() => document.documentElement.scrollHeight)) > 5000);
    await page.emulateMedia({ media: "screen" });
  },
  async "the print button prints when all turns are open"(page) {
    await openRollout(page, 1);
    await page.evaluate(() => {
      globalThis.print = () => {
        globalThis.printed = document.querySelectorAll(".turn-body .item").length;
        dispatchEvent(new Event("afterprint"));
      };
    });
    await page.getByRole("button", { name: "print", exact: true }).click();
    await page.waitForFunction(() => globalThis.printed >= 100);
    await page.waitForFunction(() => document.querySelectorAll(".turn-body").length < 100);
  },
  async "a link to a message brings it into sight"(page) {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await openRollout(page, 12, "#turn=3");
    const message = '[data-turn="3"] [data-item="1"]';
    await page.locator(message).getByRole("button", { name: "copy a link to this message" }).click();
    await page.waitForFunction(async () => (await navigator.clipboard.readText()).endsWith("#turn=3.1"));
    await page.goto("about:blank");
    await openRollout(page, 11, "#turn=1.1");
    const linked = page.locator('[data-turn="1"] [data-item="1"] h3').first();
    await linked.waitFor();
    await inSight(page, await linked.elementHandle());
    assert.match(page.url(), /#turn=1\.1$/);
  },
  async "a click is marked on its screenshot"(page) {
    await openRollout(page, 15, "#turn=1");
    for (const [turn, across, down] of [[1, 0.5, 0.5], [2, 0.15, 0.6]]) {
      const picture = await page.locator(`[data-turn="${turn}"] img.picture`).boundingBox();
      const mark = await page.locator(`[data-turn="${turn}"] .pointed`).boundingBox();
      assert.ok(Math.abs(mark.x + mark.width / 2 - picture.x - across * picture.width) < 1.5);
      assert.ok(Math.abs(mark.y + mark.height / 2 - picture.y - down * picture.height) < 1.5);
    }
    await page.locator('[data-turn="3"] img.picture').waitFor();
    assert.equal(await page.locator('[data-turn="3"] .pointed').count(), 0);
    await checkAccess(page, "a click");
    if (pictures) await page.screenshot({ path: join(pictures, "click.png") });
  },
  async "a phone shows a rollout without a fault"(page) {
    await page.setViewportSize({ width: 390, height: 800 });
    await openRollout(page, 3);
    await page.keyboard.press("n");
    await page.locator('[data-turn="32"] .turn-body').waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0);
    await checkAccess(page, "a rollout on a phone");
    await page.setViewportSize({ width: 1280, height: 800 });
  },
};

await run(steps, await open(url));
