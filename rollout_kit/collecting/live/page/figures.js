// The figures of a run: what became of its rollouts, and its rates, limits and costs.

import { html } from "./vendor/preact-htm.js";
import { dollars, number, seconds } from "./format.js";

const PARTS = { done: "done", failed: "failed", unverified: "unverified", in_flight: "in flight", parked: "parked" };

/** A bar of all rollouts of the plan, and its parts in numbers. */
export function Whole({ counts }) {
  const shown = Object.entries(PARTS);
  const known = shown.reduce((sum, [name]) => sum + counts[name], 0);
  const whole = Math.max(counts.planned ?? 0, known, 1);
  const text = shown.map(([name, label]) => `${number(counts[name])} ${label}`).join(", ");
  return html`<section>
    <div class="whole" role="img" aria-label=${text}>
      ${shown.map(([name]) => html`<span class=${`part-${name}`} style=${{ width: `${(100 * counts[name]) / whole}%` }}></span>`)}
    </div>
    <dl>
      ${shown.map(([name, label]) => html`<div><dt><span class=${`key part-${name}`}></span> ${label}</dt><dd><b>${number(counts[name])}</b></dd></div>`)}
      <div><dt>owed</dt><dd><b>${number(counts.owed)}</b></dd></div>
      <div><dt>planned</dt><dd><b>${counts.planned === null ? (counts.is_endless ? "no end" : "still counted") : number(counts.planned)}</b></dd></div>
    </dl>
  </section>`;
}

export function Tiles({ now }) {
  const { reward, speed, cost, parallel, holdup } = now;
  const adapts = parallel.floor !== parallel.ceiling;
  const limits = [
    ["cost", now.max_cost_usd && dollars(now.max_cost_usd)],
    ["tokens", now.max_total_tokens && number(now.max_total_tokens)],
    ["minutes", now.max_minutes && number(now.max_minutes)],
  ].filter(([, value]) => value);
  return html`<section class="tiles" aria-label="figures">
    <${Tile} name="reward" value=${reward ? number(reward.value, 3) : "–"}>
      ${reward && `${reward.low === null ? "" : `${number(reward.low, 3)} – ${number(reward.high, 3)}, `}over ${number(reward.number)}`}<//>
    <${Tile} name="rollouts a second" value=${number(speed.recent_rollouts_per_s, 3)}>${number(speed.rollouts_per_s, 3)} since the start<//>
    ${speed.output_tokens_per_s !== null &&
    html`<${Tile} name="output tokens a second" value=${number(Math.round(speed.recent_output_tokens_per_s))}>
      ${number(Math.round(speed.output_tokens_per_s))} since the start, ${number(now.output_tokens)} in all<//>`}
    <${Tile} name="cost" value=${cost ? dollars(cost.usd) : "–"}>
      ${cost && cost.usd !== null
        ? `${dollars(cost.usd_per_minute)} a minute${cost.projected_usd === null ? "" : `, ${dollars(cost.projected_usd)} at the end`}`
        : cost ? `${number(cost.unpriced_calls)} calls without a price` : "nothing has a price"}<//>
    <${Tile} name="limit of parallelism" value=${number(parallel.limit)}>
      ${adapts ? `adapts from ${number(parallel.floor)} to ${number(parallel.ceiling)}` : "fixed"}${parallel.why && `: ${parallel.why}`}<//>
    <${Tile} name="time" value=${seconds(now.elapsed_s)}>
      ${now.left_s === null ? "" : `about ${seconds(now.left_s)} to go`}<//>
    <${Tile} name="limits of the run" value=${limits.map(([name, value]) => `${value} ${name}`.replace(" cost", "")).join(", ") || "none"}><//>
  </section>
  ${holdup && html`<p class="note holdup">${holdup.sentence}</p>`}`;
}

function Tile({ name, value, children }) {
  return html`<div class="tile">${name} <b>${value}</b> <small>${children}</small></div>`;
}
