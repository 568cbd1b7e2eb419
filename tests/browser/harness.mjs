// What the scripts of the browser tests share: a browser, and steps that are run one after the other.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];

const requireOf = (modules) => createRequire(resolve(modules, "node_modules", "x.js"));

/** A browser: `open` opens an address under `url`, `run` runs steps on a page until one does not hold, `checkAccess`
 * looks for faults of accessibility. What goes wrong on any page is in `problems`, also a request to elsewhere whose
 * address is `watched`. */
export async function begin(modules, executablePath, url, options = {}) {
  const { failsOnConsole = false, height = 800, width = 1280, watched = /^https?:/ } = options;
  const { chromium } = requireOf(modules)("playwright-core");
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  const problems = [];

  async function open(address, colorScheme = "light") {
    const page = await browser.newPage({ viewport: { width, height }, colorScheme });
    page.setDefaultTimeout(60_000);
    page.on("pageerror", (error) => problems.push(`error on the page: ${error.message}`));
    page.on("dialog", (dialog) => problems.push(`a dialog opened: ${dialog.message()}`) && dialog.dismiss());
    page.on("request", (request) => {
      if (watched.test(request.url()) && !request.url().startsWith(url)) problems.push(`asked for ${request.url()}`);
    });
    if (failsOnConsole) page.on("console", (said) => said.type() === "error" && problems.push(`console: ${said.text()}`));
    await page.goto(address);
    return page;
  }

  const axe = readFileSync(requireOf(modules).resolve("axe-core/axe.min.js"), "utf8");

  async function checkAccess(page, name) {
    await page.evaluate(axe); // evaluated by the debugger, which the policy of the page does not bind
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    const serious = violations.filter((each) => ["serious", "critical"].includes(each.impact));
    const said = serious.map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 200)} ${each.nodes[0].failureSummary}`);
    assert.deepEqual(said, [], `axe-core finds faults on the page of ${name}`);
  }

  async function run(steps, page) {
    let failed = false;
    for (const [name, step] of Object.entries(steps)) {
      try {
        await step(page);
        assert.deepEqual(problems, []);
        console.log(`ok: ${name}`);
      } catch (error) {
        console.log(`FAILED: ${name}: ${error.stack}`);
        failed = true;
        break;
      }
    }
    await browser.close();
    process.exit(failed ? 1 : 0);
  }

  return { open, run, checkAccess, problems };
}
