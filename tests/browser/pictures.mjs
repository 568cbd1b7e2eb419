// Takes the pictures of the documentation: node pictures.mjs <modules> <browser> <url> <report> <folder>
// <url> is that of an ng_view over two files, <report> the page that ng_report wrote of them.

import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [modules, executablePath, url, report, folder] = process.argv.slice(2);
const { chromium } = createRequire(resolve(modules, "node_modules", "x.js"))("playwright-core");

const COLUMNS = ["file", "reward", "status", "task_id", "rollout_index", "answer", "num_turns", "num_tool_calls", "output_tokens", "duration_s"];

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
for (const colorScheme of ["light", "dark"]) {
  const page = await browser.newPage({ viewport: { width: 1200, height: 720 }, colorScheme });
  const take = async (name) => {
    await page.waitForTimeout(800);
    await page.screenshot({ path: join(folder, `${name}-${colorScheme}.png`) });
  };
  await page.addInitScript((names) => localStorage.setItem("rollout-columns", JSON.stringify(names)), COLUMNS);
  await page.goto(`${url}/?column=reward`);
  await page.locator("tbody tr").first().waitFor();
  await take("table");
  await page.goto(`${url}/?view=compare`);
  await page.locator(".flips tbody tr").first().waitFor();
  await take("compare");
  await page.goto(`${url}/?view=plots`);
  await page.locator(".plot canvas").first().waitFor();
  await take("plots");
  await page.goto(`file://${resolve(report)}`);
  await take("report");
  await page.close();
}
await browser.close();
