// Drives the pages that put rollouts next to each other: node trails.mjs <modules> <browser> <url> <pictures>

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, pictures] = process.argv.slice(2);
const { open, run, checkAccess } = await begin(modules, executablePath, url, { failsOnConsole: true });

const group = `${url}/?view=group&file=one.jsonl&task_id=0000000000000001&agent=solver&rollout_index=0`;

const steps = {
  async "a group is shown turn by turn from the first difference on"(page) {
    await page.goto(group);
    await page.locator(".trails", { hasText: "The first 4 turns are the same." }).waitFor();
    assert.equal(await page.locator(".trails th").count(), 3);
    await page.locator(".trails th", { hasText: "advantage -1.414" }).waitFor();
    await page.locator(".trails .output.failed", { hasText: "no such file" }).waitFor();
    await checkAccess(page, "a group turn by turn");
    if (pictures) await page.screenshot({ path: join(pictures, "trails.png") });
  },
  async "each figure is saved as an SVG file"(page) {
    await page.goto(`${url}/?view=plots`);
    const buttons = page.getByRole("button", { name: "save as SVG" });
    await buttons.first().waitFor();
    const names = new Set();
    for (const button of await buttons.all()) {
      const [download] = await Promise.all([page.waitForEvent("download"), button.click()]);
      const content = readFileSync(await download.path(), "utf8");
      const isDrawn = await page.evaluate((text) => {
        const found = new DOMParser().parseFromString(text, "image/svg+xml");
        return !found.querySelector("parsererror") && found.querySelectorAll("rect, path, circle, text").length > 4;
      }, content);
      assert.ok(isDrawn, download.suggestedFilename());
      names.add(download.suggestedFilename());
      if (pictures) writeFileSync(join(pictures, download.suggestedFilename()), content);
    }
    assert.equal(names.size, 6);
  },
  async "a turn leads to its rollout"(page) {
    await page.goto(group);
    await page.locator(".trails td", { hasText: "I give up." }).getByRole("link").click();
    await page.locator("main.rollout .head").waitFor();
    assert.match(page.url(), /rollout_index=1.*turn=7/);
    await page.locator('[data-turn="7"]').waitFor();
  },
  async "two marked answers are aligned, and equal turns are folded"(page) {
    await page.goto(group);
    for (const name of ["#1", "#2"]) await page.locator(".member", { hasText: name }).locator("input[type=checkbox]").check();
    await page.locator(".trails tr.equal", { hasText: "1 equal turn" }).waitFor();
    assert.equal(await page.locator(".trails th").count(), 2);
  },
  async "a task that changed is shown side by side"(page) {
    await page.goto(`${url}/?view=compare&first=one.jsonl&second=two.jsonl`);
    await page.getByRole("button", { name: "side by side" }).first().click();
    await page.locator("main.pair .trails").waitFor();
    await page.locator(".trails th", { hasText: "two.jsonl #0" }).waitFor();
    await checkAccess(page, "two rollouts side by side");
    await page.keyboard.press("Escape");
    await page.locator("main.compare").waitFor();
  },
};

await run(steps, await open(url));
