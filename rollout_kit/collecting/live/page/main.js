// The page of the collections that run: asked once a second, for what was computed already.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { get } from "./ask.js";
import { Charts } from "./charts.js";
import { Tiles, Whole } from "./figures.js";
import { count } from "./format.js";
import { Steering } from "./steering.js";
import { Changes, Failures, Gauges, Parts, Servers, Slowest, Tail } from "./tables.js";
import { switchTheme } from "./theme.js";

const POLL_MS = 1000;

function useLive() {
  const [live, setLive] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let timer;
    const ask = async () => {
      try {
        setLive(await get("/api/live"));
        setProblem("");
      } catch (error) {
        const why = error instanceof TypeError ? "it has ended, or was stopped" : error.message;
        setProblem(`No answer: ${why}. The figures are the last ones.`);
      }
      timer = setTimeout(ask, document.hidden ? 10 * POLL_MS : POLL_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, []);
  return { live, problem };
}

function Page() {
  const { live, problem } = useLive();
  const [chosen, setChosen] = useState("");
  if (!live) return html`<p class=${problem ? "error" : "note"} role=${problem ? "alert" : undefined}>${problem || "Loading…"}</p>`;
  const now = live.collections.find((each) => each.run_id === chosen) ?? live.collections[0];
  const name = now ? now.output.split("/").at(-1) || now.run_id : "";
  document.title = now ? `${name}: ${now.state}` : "Servers";
  return html`<header class="top">
      ${live.collections.length > 1
        ? html`<label>collection <select value=${now.run_id} onChange=${(event) => setChosen(event.target.value)}>
            ${live.collections.map((each) => html`<option value=${each.run_id}>${each.output || each.run_id}</option>`)}</select></label>`
        : ""}
      <span class="title" title=${now?.output}>${now ? now.output || now.run_id : live.servers ? live.url : ""}</span>
      ${now && html`<span class=${`state ${now.state}`} role="status">${now.state}</span>`}
      <button class="quiet" aria-label="switch between light and dark" onClick=${switchTheme}>◐</button>
    </header>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${(live.problems ?? []).map((each) => html`<p class="note warning">${each}</p>`)}
    <main class="live" tabindex="0">
      <h1 class="note">${now ? `${count(now.finished, "rollout")} ended in this run` : "No collection runs."}</h1>
      ${live.servers && html`<${Servers} servers=${live.servers} />`}
      ${now && html`<${Collection} key=${now.run_id} now=${now} />`}
    </main>`;
}

function Collection({ now }) {
  return html`${now.alarms.map((each) => html`<p class="note warning" role="alert">${each}</p>`)}
    <${Whole} counts=${now.counts} />
    <${Tiles} now=${now} />
    <${Steering} now=${now} />
    <${Charts} now=${now} />
    <div class="two">
      <${Slowest} now=${now} />
      <${Tail} tail=${now.tail} />
      <${Failures} failures=${now.failures} />
      <${Parts} name="Agents" parts=${now.agents} />
      ${now.arms.length > 0 && html`<${Parts} name="Arms" parts=${now.arms} />`}
      ${Object.keys(now.gauges).length > 0 && html`<${Gauges} gauges=${now.gauges} />`}
      <${Changes} changes=${now.changes} />
    </div>`;
}

const root = document.getElementById("page");
root.textContent = "";
render(html`<${Page} />`, root);
