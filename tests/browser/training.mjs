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
};

await run(steps, await open(url));
