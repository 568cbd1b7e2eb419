// Opens a file of a million rollouts in a browser: node million_rows.mjs <modules> <browser> <url> <file> <row> <pid>
// Each step has seconds until it is on screen, and the CPU seconds of the viewer meanwhile.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [modules, executablePath, url, file, row, pid] = process.argv.slice(2);
const { chromium } = createRequire(resolve(modules, "node_modules", "x.js"))("playwright-core");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"];
const TICKS = 100; // a second of CPU, as Linux counts it

const browser = await chromium.launch({ executablePath, args: FLAGS });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
page.setDefaultTimeout(600_000);

function cpu() {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(")").at(-1).trim().split(" ");
  return fields.slice(11, 15).reduce((sum, each) => sum + Number(each), 0) / TICKS;
}

const found = {};

async function took(name, act, shown) {
  const [began, before] = [performance.now(), cpu()];
  await act();
  await shown();
  found[name] = { wall_s: (performance.now() - began) / 1000, cpu_s: cpu() - before };
}

/** Looks in each frame: `waitFor` of a locator looks after 0.27 s, and then each 0.5 s. */
const shown = (selector, text = "") =>
  page.waitForFunction(
    ([selector, text]) => [...document.querySelectorAll(selector)].some((each) => each.checkVisibility() && new RegExp(text).test(each.textContent.trim())),
    [selector, text],
  );
const status = (text) => shown(".table-view [role=status]", text.source);
const firstRow = () => shown("tbody tr td.column-task_id");
const all = /^1,000,000 of 1,000,000 rows$/;
const position = Number(row) + 1;
const task = Math.floor(Number(row) / 4).toString(16).padStart(16, "0");

await took("first_rows", () => page.goto(url), firstRow);
await took("all_rows", async () => {}, () => status(all));
if (Number(row)) {
  const where = "reward < 0.5 and num_turns > 8";
  await took(
    "filter",
    async () => {
      await page.fill("input[name=where]", where);
      await page.keyboard.press("Enter");
    },
    () => status(/^[1-9]\d{0,2},\d{3} of 1,000,000 rows$/),
  );
  await page.goto(url);
  await status(all);
  const key = new URLSearchParams({ view: "rollout", file, task_id: task, agent: "agent", rollout_index: Number(row) % 4 });
  await took("row_opened", () => page.goto(`${url}/?${key}`), () => shown(".turn .turn-head"));
  await shown("main.rollout .steps", `${position.toLocaleString("en-US")} of 1,000,000`);
  await page.waitForTimeout(100); // the page remembers the row after it has drawn it
  await took("row_returned_to", () => page.keyboard.press("Escape"), () => shown("tbody tr.selected .column-task_id", task));
  await took("figures", () => page.goto(`${url}/?view=plots`), () => shown(".plot canvas"));
}
console.log(JSON.stringify(found));
await browser.close();
