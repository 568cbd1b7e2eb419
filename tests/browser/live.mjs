// Drives the page of a running collection: node live.mjs <modules> <browser> <url> [<folder>]
// Prints a line for each step, and ends with status 1 at the first that does not hold. With a folder
// it takes the pictures of the documentation instead.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [modules, executablePath, url, folder] = process.argv.slice(2);
const require = createRequire(resolve(modules, "node_modules", "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const problems = [];

async function open(colorScheme) {
  const page = await browser.newPage({ viewport: { width: 1200, height: 1180 }, colorScheme });
  page.setDefaultTimeout(60_000);
  page.on("pageerror", (error) => problems.push(`error on the page: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) problems.push(`asked for ${request.url()}`);
  });
  await page.goto(url);
  await page.locator(".tile").first().waitFor();
  return page;
}

const says = (page, selector, text) => page.locator(selector, { hasText: text }).first().waitFor();

async function set(page, label, value) {
  await page.getByLabel(label, { exact: true }).fill(value);
  await page.keyboard.press("Enter");
}

async function checkAccess(page, name) {
  await page.evaluate(axe); // evaluated by the debugger, which the policy of the page does not bind
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const serious = violations.filter((each) => ["serious", "critical"].includes(each.impact));
  const said = serious.map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 200)} ${each.nodes[0].failureSummary}`);
  assert.deepEqual(said, [], `axe-core finds faults on the page, ${name}`);
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

if (folder) {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(colorScheme);
    await page.waitForTimeout(2500);
    await page.screenshot({ path: join(folder, `live-${colorScheme}.png`) });
    await page.close();
  }
  await browser.close();
  process.exit(problems.length);
}

const page = await open("light");
let failed = false;
for (const [name, step] of Object.entries(steps)) {
  try {
    await step(page);
    assert.deepEqual(problems, []);
    console.log(`ok: ${name}`);
  } catch (error) {
    console.log(`FAILED: ${name}: ${error.message}`);
    failed = true;
    break;
  }
}
await browser.close();
process.exit(failed ? 1 : 0);
