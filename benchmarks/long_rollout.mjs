// Opens a long rollout in a browser: node long_rollout.mjs <modules> <browser> <url> <turns> <file>

import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [modules, executablePath, url, turns, file] = process.argv.slice(2);
const { chromium } = createRequire(resolve(modules, "node_modules", "x.js"))("playwright-core");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"];
const address = `${url}/?view=rollout&file=${encodeURIComponent(file)}&task_id=${"0".repeat(16)}&agent=solver&rollout_index=0`;

const browser = await chromium.launch({ executablePath, args: [...FLAGS, "--enable-precise-memory-info"] });

/** Resident MB of the largest process that draws pages, among all that this script has started. */
function tabMb() {
  const sizes = [];
  for (const id of readdirSync("/proc").filter((each) => /^\d+$/.test(each))) {
    try {
      const said = readFileSync(`/proc/${id}/cmdline`, "utf8");
      if (!said.includes("--type=renderer") || !isOurs(id)) continue;
      sizes.push(Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))[1]) / 1000);
    } catch {} // it has ended
  }
  return Math.max(...sizes);
}

function isOurs(id) {
  while (Number(id) > 1) {
    if (Number(id) === process.pid) return true;
    id = /PPid:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))[1];
  }
  return false;
}

async function opened(mark, selector) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  page.setDefaultTimeout(120_000);
  await page.goto("about:blank");
  const empty = tabMb();
  const began = performance.now();
  await page.goto(address + mark);
  await page.locator(selector).first().waitFor();
  return { page, empty, took: (performance.now() - began) / 1000 };
}

const first = await opened("", ".turn .turn-head");
const found = { first_screen_s: first.took, tab_empty_mb: first.empty, tab_mb: tabMb() };
const jump = performance.now();
await first.page.keyboard.press("g");
await first.page.keyboard.type(turns);
await first.page.keyboard.press("Enter");
await first.page.locator(`[data-turn="${turns}"] .turn-body .output`).first().waitFor();
found.last_turn_s = (performance.now() - jump) / 1000;
const search = performance.now();
await first.page.fill("input[name=inside]", `part ${turns - 2}`);
await first.page.keyboard.press("Enter");
await first.page.locator(".inside [role=status]", { hasText: "1 of 1" }).waitFor();
found.search_s = (performance.now() - search) / 1000;
found.tab_after_mb = tabMb();
await first.page.close();
const second = await opened("#turn=5000", '[data-turn="5000"] .turn-body .output');
found.linked_turn_s = second.took;
console.log(JSON.stringify(found));
await browser.close();
