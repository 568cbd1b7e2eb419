// Drives the page of a running collection: node live.mjs <modules> <browser> <url> [<folder>]
// Prints a line for each step, and ends with status 1 at the first that does not hold. With a folder
// it takes the pictures of the documentation instead.

import assert from "node:assert/strict";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, folder] = process.argv.slice(2);
const { open, run, checkAccess } = await begin(modules, executablePath, url, { width: 1200, height: 1180, watched: /./ });

async function openRun(colorScheme) {
  const page = await open(url, colorScheme);
  await page.locator(".tile").first().waitFor();
  return page;
}

const says = (page, selector, text) => page.locator(selector, { hasText: text }).first().waitFor();

async function set(page, label, value) {
  await page.getByLabel(label, { exact: true }).fill(value);
  await page.keyboard.press("Enter");
}

const steps = {
  async "the figures are shown and move"(page) {
    await says(page, ".state", "running");
    await says(page, "dl", "planned");
    const before = await page.locator("h1").textContent();
    await page.waitForFunction((text) => document.querySelector("h1").textContent !== text, before);
    await page.locator(".plot canvas").first().waitFor();
    assert.equal(await page.locator(".plot canvas").count(), 4);
    await says(page, ".wide td", "/v1/responses");
  },
  async "the reward is that of all rollouts that are done"(page) {
    await says(page, ".tile", /^reward .*over/);
    const [over, done] = await page.evaluate(() => {
      const find = (selector, word) => [...document.querySelectorAll(selector)].find((each) => each.textContent.trim().startsWith(word));
      return [find(".tile", "reward").textContent.split("over ")[1], find("dl div", "done").querySelector("b").textContent];
    });
    assert.equal(over, done);
    assert.ok(Number(done.replace(/\D/g, "")) > 0);
  },
  async "parallelism is set, and the change is recorded"(page) {
    await set(page, "parallelism", "7");
    await says(page, ".said", "parallelism: 4-24-48 → 7");
    await says(page, ".tile", "fixed: set by");
    await says(page, "td", "(page)");
  },
  async "a wrong value is refused in a line"(page) {
    await set(page, "parallelism", "many");
    await says(page, ".said.error", "give a number, auto, or min-start-max");
    await set(page, "minutes", "-3");
    await says(page, ".said.error", "max_minutes: must be above 0");
  },
  async "a limit is set and removed"(page) {
    await set(page, "cost limit, $", "50");
    await says(page, ".tile", "$50");
    await set(page, "cost limit, $", "none");
    await says(page, ".said", "max_cost_usd: 50");
  },
  async "a pause drains, and the run goes on"(page) {
    await page.getByRole("button", { name: "pause" }).click();
    await page.locator(".state.paused").waitFor();
    await says(page, "p", "Nothing is in flight.");
    await page.getByRole("button", { name: "resume" }).click();
    await page.locator(".state.running").waitFor();
  },
  async "a button that ends something asks once more"(page) {
    await page.getByRole("button", { name: "stop" }).click();
    await page.getByRole("button", { name: "really stop" }).waitFor();
    await page.getByRole("button", { name: "stop", exact: true }).waitFor(); // it was not pressed
    await page.locator(".state.running").waitFor();
  },
  async "axe-core finds no serious fault, light and dark"(page) {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(1200);
      await checkAccess(page, colorScheme);
    }
  },
  async "a stop ends the run, and the page says so"(page) {
    await page.getByRole("button", { name: "stop" }).click();
    await page.getByRole("button", { name: "really stop" }).click();
    await says(page, "[role=alert]", "it has ended, or was stopped");
  },
};

/** Replies of the run, in which its output has no folder. */
async function withoutFolder(route) {
  const response = await route.fetch();
  await route.fulfill({ response, body: (await response.text()).replace(/"output":"[^"]*\//g, '"output":"') });
}

const pictures = {
  async "the pictures are taken"() {
    for (const colorScheme of ["light", "dark"]) {
      const page = await openRun(colorScheme);
      await page.setViewportSize({ width: 1200, height: 2000 });
      await page.route("**/api/live", withoutFolder);
      await page.locator(".tile", { hasText: /over ([6-9]|[1-9]\d)/ }).waitFor({ timeout: 600_000 });
      const fourTurns = page.locator("td:nth-child(4)", { hasText: /^[4-6]$/ });
      await page.locator("tr", { has: fourTurns }).first().locator("button[aria-expanded]").click();
      const turn = page.locator(".turns-so-far li").nth(2);
      await turn.waitFor();
      await page.locator(".title", { hasText: /^[^/]+$/ }).waitFor();
      const { y, height } = await turn.boundingBox();
      const clip = { x: 0, y: 0, width: 1200, height: Math.ceil(y + height) };
      await page.screenshot({ path: join(folder, `live-${colorScheme}.png`), clip });
      await page.close();
    }
  },
};

await (folder ? run(pictures) : run(steps, await openRun("light")));
