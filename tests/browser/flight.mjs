// Opens a rollout in flight on the page of its collection: node flight.mjs <modules> <browser> <url> <pictures>
// After the first step the test lets the rollouts go on by some turns.

import assert from "node:assert/strict";
import { join } from "node:path";
import { begin } from "./harness.mjs";

const [modules, executablePath, url, pictures] = process.argv.slice(2);
const { open, run, checkAccess } = await begin(modules, executablePath, url, { failsOnConsole: true, height: 1180 });

const row = (page) => page.locator("tr", { has: page.getByRole("button", { name: /^[0-9a-f]{16}:0$/ }) }).first();
const turns = (page) => page.locator(".turns-so-far li");

const steps = {
  async "a click opens a rollout in flight with its turns, tools and tokens"(page) {
    await row(page).locator("td", { hasText: "add 5; note begin" }).waitFor();
    const [, age, , number, tokens] = await row(page).locator("td").allTextContents();
    assert.match(age, /\d+ m?s|\d+(\.\d+)? s/);
    assert.deepEqual([number, tokens], ["6", "42"]);
    await row(page).getByRole("button", { name: /^[0-9a-f]{16}:0$/ }).click();
    await turns(page).nth(5).waitFor();
    assert.match(await turns(page).nth(5).textContent(), /7 tok.*add\s+a\s+5\s+b\s+1/s);
  },
  async "all arguments, the reasoning and what the model says are on screen, of long ones the ends"(page) {
    const turn = turns(page).nth(5);
    assert.equal(await turn.locator(".thought").innerText(), "I have 5.\nOne more is 6.");
    assert.equal(await turn.locator(".said").innerText(), "I <b>add</b> one.");
    const asked = turn.locator(".asked");
    assert.match(await asked.innerText(), /^begin\nline 0 .*more characters.*line 399 of a reason\nend$/s);
    assert.doesNotMatch(await asked.innerText(), /line 20 of/);
    await asked.getByRole("button").click();
    assert.match(await asked.innerText(), /line 20 of/);
  },
  async "what the tool of a finished turn returned is on screen"(page) {
    await turns(page).nth(5).locator(".returned", { hasText: /^6$/ }).waitFor();
    const returned = await page.locator(".turns-so-far .returned:not(.bad)").allTextContents();
    assert.deepEqual(returned.slice(0, 6), ["1", "2", "3", "4", "5", "6"]);
    assert.match(await turns(page).nth(5).locator(".returned.bad").innerText(), /note/);
  },
  async "it grows while it is open"(page) {
    await turns(page).nth(8).waitFor();
    await turns(page).nth(8).locator(".returned", { hasText: /^9$/ }).waitFor();
    await row(page).locator("td", { hasText: "add 8; note begin" }).waitFor();
    if (pictures) await page.screenshot({ path: join(pictures, "flight.png"), fullPage: true });
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await checkAccess(page, `a rollout in flight, ${colorScheme}`);
    }
  },
};

await run(steps, await open(url));
