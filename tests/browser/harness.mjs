// What the scripts of the browser tests share: a browser, and steps that are run one after the other.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];

const requireOf = (modules) => createRequire(resolve(modules, "node_modules", "x.js"));

/** The source of axe-core. */
export const axe = (modules) => readFileSync(requireOf(modules).resolve("axe-core/axe.min.js"), "utf8");

/** A browser: `open` opens an address under `url`, `run` runs steps on a page until one does not hold. What goes
 * wrong on any page is in `problems`. */
export async function begin(modules, executablePath, url, { failsOnConsole = false } = {}) {
  const { chromium } = requireOf(modules)("playwright-core");
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  const problems = [];

  async function open(address, colorScheme = "light") {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, colorScheme });
    page.setDefaultTimeout(60_000);
    page.on("pageerror", (error) => problems.push(`error on the page: ${error.message}`));
    page.on("dialog", (dialog) => problems.push(`a dialog opened: ${dialog.message()}`) && dialog.dismiss());
    page.on("request", (request) => {
      if (/^https?:/.test(request.url()) && !request.url().startsWith(url)) problems.push(`asked for ${request.url()}`);
    });
    if (failsOnConsole) page.on("console", (said) => said.type() === "error" && problems.push(`console: ${said.text()}`));
    await page.goto(address);
    return page;
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

  return { open, run, problems };
}
