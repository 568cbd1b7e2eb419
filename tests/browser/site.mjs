// Looks at pages of the site: node site.mjs <modules> <browser> <url> <page>…
// On a desktop, light and dark, and on a phone: no serious fault by axe-core, nothing wider than the screen.

import assert from "node:assert/strict";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, ...names] = process.argv.slice(2);
const { open, run, checkAccess } = await begin(modules, executablePath, url, { failsOnConsole: true });

const looks = { light: ["light", 1280], dark: ["dark", 1280], phone: ["light", 390] };

const steps = Object.fromEntries(
  Object.entries(looks).map(([look, [colorScheme, width]]) => [
    `${names.length} pages, ${look}`,
    async () => {
      for (const name of names) {
        const page = await open(`${url}/${name}`, colorScheme);
        await page.setViewportSize({ width, height: 800 });
        await checkAccess(page, `${name || "home"} (${look})`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `${name || "home"} (${look}) is ${wide} pixels too wide`);
        await page.close();
      }
    },
  ]),
);

await run(steps);
