// Takes the pictures of an agent at work: node coding.mjs <modules> <browser> <url> <folder>
// <url> is that of an ng_view over the rollouts that docs/coding_run.py collects.

import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [modules, executablePath, url, folder] = process.argv.slice(2);
const { chromium } = createRequire(resolve(modules, "node_modules", "x.js"))("playwright-core");

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
for (const colorScheme of ["light", "dark"]) {
  const page = await browser.newPage({ viewport: { width: 1200, height: 1400 }, colorScheme });
  /** Takes the page down to the end of an element. */
  const take = async (name, last) => {
    await page.mouse.move(0, 0);
    await page.waitForTimeout(800);
    const { y, height } = await last.boundingBox();
    const clip = { x: 0, y: 0, width: 1200, height: Math.ceil(y + height + 2) };
    await page.screenshot({ path: join(folder, `${name}-${colorScheme}.png`), clip });
  };
  /** Scrolls until an element stands below the bar of the turns. */
  const scrollTo = (place, below) =>
    place.evaluate((each, space) => {
      const scroller = each.closest("main");
      scroller.scrollTop += each.getBoundingClientRect().top - scroller.getBoundingClientRect().top - space;
    }, below);
  await page.goto(`${url}/?where=reward < 1`);
  await page.locator("tbody tr").first().click();
  await page.locator('[data-turn="3"] .turn-body summary').click();
  await scrollTo(page.locator('[data-turn="3"]'), 60);
  await take("rollout", page.locator('[data-turn="5"] .turn-body'));
  await scrollTo(page.locator(".explanation"), 8);
  await take("verdict", page.locator(".explanation"));
  await page.keyboard.press("t");
  await page.locator(".trails td").first().waitFor();
  await take("group", page.locator(".trails tr.equal").nth(1));
  await page.close();
}
await browser.close();
