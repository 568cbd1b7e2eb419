// The tables of the page. All text is shown as text.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { get } from "./ask.js";
import { count, dollars, number, rewardClass, seconds } from "./format.js";
import { spell, steer, Sure } from "./steering.js";

function Table({ name, columns, rows, empty }) {
  return html`<section><h2>${name}</h2>
    ${rows.length === 0
      ? html`<p class="note">${empty}</p>`
      : html`<div class="wide" tabindex="0" role="region" aria-label=${name}><table>
          <thead><tr>${columns.map((each) => html`<th scope="col">${each}</th>`)}</tr></thead><tbody>${rows}</tbody></table></div>`}
  </section>`;
}

export function Slowest({ now }) {
  const [problem, setProblem] = useState("");
  const [watched, setWatched] = useState("");
  const ask = (request) => steer(now, request).then(() => setProblem(""), (error) => setProblem(error.message));
  const rows = now.slowest.map(
    (each) => html`<tr key=${each.rollout}><td><button class="quiet" aria-expanded=${watched === each.rollout} onClick=${() => setWatched(watched === each.rollout ? "" : each.rollout)}><code>${each.rollout}</code></button></td><td>${seconds(each.seconds)}</td>
      <td><${Sure} text="cancel" label=${`cancel ${each.rollout}`} onSure=${() => ask({ cancel: [each.rollout] })} />
        <${Sure} text="again" label=${`start ${each.rollout} again`} onSure=${() => ask({ requeue: [each.rollout] })} />
        <${Sure} text="drop" label=${`drop ${each.rollout}`} onSure=${() => ask({ cancel: [each.rollout], drop: true })} /></td>
      <td>${number(each.turns)}</td><td>${number(each.tokens)}</td><td class="long">${each.last}</td><td class="long">${each.stage}</td></tr>
      ${watched === each.rollout && html`<tr key=${`${each.rollout} turns`}><td colspan="7"><${Turns} run=${now.run_id} rollout=${each.rollout} /></td></tr>`}`,
  );
  return html`<div><${Table} name="Longest in flight" columns=${["rollout", "since", "steer", "turns", "tokens", "last turn", "waits for"]} rows=${rows} empty="Nothing is in flight." />
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <p class="note">${Object.entries(now.stages).map(([stage, size]) => `${number(size)} × ${stage}`).join(" · ")}</p></div>`;
}

/** The turns of a rollout in flight, which grow. */
function Turns({ run, rollout }) {
  const [turns, setTurns] = useState([]);
  const [end, setEnd] = useState("");
  useEffect(() => {
    let timer;
    let known = [];
    const ask = async () => {
      try {
        const since = known.at(-1)?.number ?? 1;
        const found = await get(`/api/turns?${new URLSearchParams({ run, rollout, since })}`);
        const first = found[0]?.number ?? 1;
        known = [...known.filter((each) => each.number < first), ...found].slice(-MAX_TURNS);
        setTurns(known);
        timer = setTimeout(ask, 1000);
      } catch (error) {
        setEnd(error.message);
      }
    };
    ask();
    return () => clearTimeout(timer);
  }, [run, rollout]);
  return html`<ol class="turns-so-far" aria-label="turns so far">${turns.map(
      (turn) => html`<li key=${turn.number} value=${turn.number}>${turn.tokens !== null && html`<span class="note">${number(turn.tokens)} tok</span>`}
        <${Bounded} text=${turn.reasoning} kind="thought" />
        <${Bounded} text=${turn.says} kind="said" />
        ${turn.tools.map((tool) => html`<div class="used"><b>${tool.name}</b> ${tool.arguments.map((each) => html`<${Argument} ...${each} />`)}
          <${Bounded} text=${tool.output} kind=${tool.is_error ? "returned bad" : "returned"} /></div>`)}
        <${Bounded} text=${turn.answer} kind="returned" /></li>`,
    )}</ol>
    ${end ? html`<p class="note">${end}</p>` : turns.length === 0 && html`<p class="note">No turn has been reported yet.</p>`}`;
}

/** An argument of a call. A short one stands on the line of its tool. */
function Argument({ name, text }) {
  const label = name && html`<span class="note">${name}</span> `;
  const isShort = text.length <= SHORT_CHARS && !text.includes("\n");
  return isShort ? html`${label}<code>${text}</code> ` : html`${label}<${Bounded} text=${text} kind="asked" />`;
}

const MAX_TURNS = 200;
const SHORT_CHARS = 120;
const END_LINES = 6;
const END_CHARS = 600;
const MIN_FOLDED = 200;

/** A text of a turn: the beginning and the end, the middle on demand. */
function Bounded({ text, kind }) {
  const [isWhole, setWhole] = useState(false);
  if (!text) return null;
  const lines = text.split("\n");
  const head = lines.slice(0, END_LINES).join("\n").slice(0, END_CHARS);
  const tail = lines.slice(-END_LINES).join("\n").slice(-END_CHARS);
  const folded = text.length - head.length - tail.length;
  return html`<pre class=${kind}>${
    isWhole || folded < MIN_FOLDED
      ? text
      : html`${head}
<button class="more" onClick=${() => setWhole(true)}>… ${number(folded)} more characters …</button>
${tail}`
  }</pre>`;
}

export function Tail({ tail }) {
  const rows = tail.map(
    (each) => html`<tr key=${each.rollout}><td><code>${each.rollout}</code></td>
      <td>${each.status === "verified" ? html`<span class=${`reward ${rewardClass(each.reward)}`}>${number(each.reward, 3)}</span>` : html`<span class=${`status ${each.status}`}>${each.status}</span>`}</td>
      <td>${seconds(each.seconds)}</td><td>${number(each.output_tokens)}</td><td>${dollars(each.cost_usd)}</td></tr>`,
  );
  return html`<${Table} name="Ended last" columns=${["rollout", "reward", "time", "tokens", "cost"]} rows=${rows} empty="Nothing has ended yet." />`;
}

export function Failures({ failures }) {
  const rows = failures.map((each) => html`<tr key=${each.name}><td>${each.name}</td><td>${number(each.number)}</td><td class="long">${each.message}</td></tr>`);
  return html`<${Table} name="Failures" columns=${["class", "number", "the last one"]} rows=${rows} empty="Nothing has failed." />`;
}

export function Parts({ name, parts }) {
  const rows = parts.map(
    (each) => html`<tr key=${each.name}><td>${each.name}</td><td>${number(each.rollouts)}</td><td><b>${each.reward ? number(each.reward.value, 3) : "–"}</b></td>
      <td>${each.reward && each.reward.low !== null ? `${number(each.reward.low, 3)} – ${number(each.reward.high, 3)}` : "–"}</td></tr>`,
  );
  return html`<${Table} name=${name} columns=${["name", "rollouts", "reward", "95 % interval"]} rows=${rows} empty="None yet." />`;
}

export function Gauges({ gauges }) {
  const rows = Object.entries(gauges).sort().map(
    ([name, value]) => html`<tr key=${name}><td>${name}</td><td><b>${number(value, 4)}</b></td></tr>`,
  );
  return html`<${Table} name="Training" columns=${["figure", "value"]} rows=${rows} empty="None yet." />`;
}

export function Changes({ changes }) {
  const rows = changes.map(
    (each) => html`<tr key=${each.at + each.what}><td>${each.at.slice(11, 19)}</td><td class="long">${each.what}: ${spell(each.old)} → ${spell(each.new)}</td><td class="long">${each.by}</td></tr>`,
  );
  return html`<${Table} name="Changes by people" columns=${["UTC", "what", "who"]} rows=${rows} empty="Nobody has changed anything." />`;
}

export function Servers({ servers }) {
  const rows = servers.map(
    (each) => html`<tr key=${each.name}><td>${each.name}</td><td><span class=${`status ${each.health === "ok" ? "verified" : "failed"}`}>${each.health}</span></td><td>${each.type}</td>
      <td>${each.pid ?? "–"}</td><td>${seconds(each.uptime_s)}</td><td>${number(each.restarts)}</td><td class="long">${load(each)}</td><td>${each.url ?? "in ng_run"}</td></tr>`,
  );
  const columns = ["name", "health", "kind", "pid", "uptime", "restarts", "load", "address"];
  return html`<${Table} name=${count(servers.length, "server process").replace("processs", "processes")} columns=${columns} rows=${rows} empty="None." />`;
}

function load({ load, health }) {
  const busy = Object.entries(load).filter(([, value]) => value);
  if (!busy.length) return health === "ok" ? "idle" : "–";
  return busy.map(([name, value]) => (value === true ? name : `${name.replaceAll("_", " ")} ${number(value)}`)).join(", ");
}
