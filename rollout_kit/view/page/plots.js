// Plots of the rollouts that the filter chooses. A bar or a point leads to its rollouts.

import { html } from "./vendor/preact-htm.js";
import { isReport, useAnswer } from "./api.js";
import { cell, count, dollars, number, seconds } from "./format.js";
import { go, queryOf } from "./place.js";
import { Plot, axes, colour } from "./plot.js";
import { openRow } from "./rollout.js";

/** A histogram of one column; a click on a bar narrows the filter to it. */
export function Histogram({ place, column, version }) {
  const { found, error } = useAnswer("/api/histogram", { ...queryOf(place), column }, version);
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!found) return html`<p class="note">Counting…</p>`;
  const narrow = (condition) => {
    const where = place.where ? `(${place.where}) and ${condition}` : condition;
    go({ ...place, view: "table", where });
  };
  return html`<section class="histogram" aria-label=${`histogram of ${column}`}>
    <header><b>${column}</b> ${found.missing > 0 && html`<span class="note">${count(found.missing, "row")} without a value</span>`}
      <button aria-label="close the histogram" onClick=${() => go({ ...place, column: "" }, { replace: true })}>×</button></header>
    <${Bars} bars=${barsOf(found)} onChoose=${narrow} />
  </section>`;
}

function barsOf(found) {
  if (found.names) {
    return found.names.map(([name, size]) => ({ label: name, size, condition: `${found.column} == ${literal(name)}` }));
  }
  return found.bins.map(([low, high, size]) =>
    low === high
      ? { label: cell(found.column, low), size, condition: `${found.column} == ${low}` }
      : { label: cell(found.column, low), size, condition: `${found.column} >= ${short(low)} and ${found.column} < ${short(high)}` },
  );
}

function literal(name) {
  return name === "true" || name === "false" ? name : JSON.stringify(name);
}

function short(value) {
  return String(Number(value.toPrecision(12)));
}

function Bars({ bars, onChoose }) {
  const most = Math.max(1, ...bars.map((bar) => bar.size));
  return html`<div class="bars">
    ${bars.map(
      (bar) => html`<button class="bar-column" disabled=${isReport} title=${`${bar.label}: ${number(bar.size)}`} onClick=${() => onChoose(bar.condition)}>
        <span class="size">${number(bar.size)}</span>
        <span class="bar-fill" style=${{ height: `${Math.max(bar.size ? 2 : 0, (bar.size / most) * 100)}px` }}></span>
        <span class="name">${bar.label}</span>
      </button>`,
    )}
  </div>`;
}

export function PlotsView({ place, state }) {
  const { found, error } = useAnswer("/api/plots", queryOf(place), state.version);
  if (error) return html`<main><p class="error" role="alert">${error}</p></main>`;
  if (!found) return html`<main><p class="note">Counting…</p></main>`;
  const narrow = (condition) => go({ ...place, view: "table", where: place.where ? `(${place.where}) and ${condition}` : condition });
  const openPoint = (id) => openRow(place, id);
  return html`<main class="plots">
    ${found.is_done === false && html`<p class="note" role="status">These are the rows found so far; the search goes on.</p>`}
    <${Parts} parts=${found.parts} />
    <div class="grid">
      <figure><figcaption>Reward</figcaption><${Bars} bars=${barsOf(found.reward)} onChoose=${narrow} /></figure>
      <figure><figcaption>Reward over time</figcaption><${Plot} make=${overTime} data=${found.over_time} /></figure>
      <figure><figcaption>Output tokens against reward <small>a click opens the rollout</small></figcaption>
        <${Plot} make=${(data) => scatter(data, openPoint)} data=${found.length} /></figure>
      <figure><figcaption>Output tokens</figcaption><${Bars} bars=${barsOf(found.output_tokens)} onChoose=${narrow} /></figure>
      <figure><figcaption>Duration</figcaption><${Bars} bars=${barsOf(found.duration_s)} onChoose=${narrow} /></figure>
      <figure><figcaption>Cost</figcaption><${Bars} bars=${barsOf(found.cost_usd)} onChoose=${narrow} /></figure>
    </div>
  </main>`;
}

function Parts({ parts }) {
  return html`<div class="parts" tabindex="0" role="region" aria-label="figures of each agent"><table>
    <thead><tr><th>file</th><th>agent</th><th>arm</th><th>reward</th><th>95 % interval</th><th>tasks</th><th>rollouts</th>
      <th>failed</th><th>unverified</th><th>turns</th><th>output tokens</th><th>duration</th><th>cost each</th></tr></thead>
    <tbody>
      ${parts.map(
        (part) => html`<tr><td>${part.file}</td><td>${part.agent}</td><td>${part.arm}</td><td><b>${number(part.reward)}</b></td>
          <td>${part.interval ? `${number(part.interval[0], 3)} – ${number(part.interval[1], 3)}` : "–"}</td>
          <td>${number(part.tasks)}</td><td>${number(part.rollouts)}</td><td>${number(part.failed)}</td><td>${number(part.unverified)}</td>
          <td>${number(part.num_turns, 3)}</td><td>${number(part.output_tokens, 3)}</td><td>${seconds(part.duration_s)}</td><td>${dollars(part.cost_usd)}</td></tr>`,
      )}
    </tbody>
  </table></div>`;
}

function overTime(data) {
  return {
    options: {
      axes: axes(),
      scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(1, high)] } },
      series: [{}, { label: "reward", stroke: colour("--accent"), width: 2, points: { show: data.length < 40 } }],
    },
    series: [data.map((each) => each[0]), data.map((each) => each[1])],
  };
}

function scatter(data, onOpen) {
  const sorted = [...data].sort((one, other) => one[0] - other[0]);
  return {
    options: {
      axes: axes(),
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(-0.05, low), Math.max(1.05, high)] } },
      series: [{ label: "output tokens" }, { label: "reward", stroke: colour("--accent"), paths: () => null, points: { show: true, size: 5 } }],
      hooks: {
        ready: [
          (plot) =>
            plot.over.addEventListener("click", () => {
              if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) onOpen(sorted[plot.cursor.idx][2]);
            }),
        ],
      },
    },
    series: [sorted.map((each) => each[0]), sorted.map((each) => each[1])],
  };
}
