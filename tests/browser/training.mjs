// Drives what training needs: node training.mjs <modules> <browser> <url> <pictures>

import assert from "node:assert/strict";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, pictures] = process.argv.slice(2);
const { open, run, checkAccess } = await begin(modules, executablePath, url, { failsOnConsole: true });

const steps = {
  async "learning curves stand next to the rewards"(page) {
    await page.goto(`${url}/?view=plots`);
    const figure = page.locator("figure", { hasText: "Learning" });
    await figure.locator("canvas").waitFor();
    assert.deepEqual((await figure.locator(".u-label").allTextContents()).slice(1), ["training", "test", "test_greedy"]);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await checkAccess(page, `learning curves, ${colorScheme}`);
    }
    await page.emulateMedia({ colorScheme: "light" });
    if (pictures) await page.screenshot({ path: join(pictures, "learning.png"), fullPage: true });
  },
  async "tokens are read with the keyboard: log-probs of three policies, mask, advantage, version"(page) {
    await page.goto(`${url}/?where=task_index==0 and rollout_index==0`);
    await page.locator("tbody tr").first().click();
    await page.locator("main.rollout .head").waitFor();
    await page.keyboard.press("l");
    const tokens = page.locator(".turn-body .tokens");
    await tokens.focus();
    const said = page.locator(".turn-body .tokens-view [role=status]");
    await page.keyboard.press("ArrowRight");
    await said.filter({ hasText: "1 of 5: token 5, given, mask 0" }).waitFor();
    await page.keyboard.press("End");
    const whole = "5 of 5: token 13, log-prob -4, p 0.0183, reference: log-prob -1, p 0.368, ratio 20.1, version 9: log-prob -3, p 0.0498, ratio 2.72, mask 1, advantage 1.732, version 9";
    await said.filter({ hasText: whole }).waitFor();
    await page.keyboard.press("ArrowLeft");
    await said.filter({ hasText: /4 of 5: token 12.*version 0$/ }).waitFor();
    await page.getByLabel("colour by").selectOption("reference");
    await page.locator(".token.heat-6", { hasText: "13" }).waitFor();
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await checkAccess(page, `tokens, ${colorScheme}`);
    }
    if (pictures) await page.screenshot({ path: join(pictures, "tokens.png"), fullPage: true });
  },
};

await run(steps, await open(url));
