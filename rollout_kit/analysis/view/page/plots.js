// Plots of the rollouts that the filter chooses. A bar or a point leads to its rollouts.

import { html } from "./vendor/preact-htm.js";
import { isReport, useAnswer } from "./api.js";
import { cell, count, dollars, number, seconds } from "./format.js";
import { Learning } from "./learning.js";
import { go, queryOf } from "./place.js";
import { Plot, axes, colour } from "./plot.js";
import { openRow } from "./rollout.js";
import { drawSvg, save } from "./svg.js";

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
    <${Legend} names=${found.series} /><${Bars} found=${found} onChoose=${narrow} />
  </section>`;
}

function barsOf(found) {
  const sizes = (at) => found.of_series[at];
  if (found.names) {
    return found.names.map(([name, size], at) => ({ label: name, size, sizes: sizes(at), condition: `${found.column} == ${literal(name)}` }));
  }
  return found.bins.map(([low, high, size], at) =>
    low === high
      ? { label: cell(found.column, low), size, sizes: sizes(at), condition: `${found.column} == ${low}` }
      : { label: cell(found.column, low), size, sizes: sizes(at), condition: `${found.column} >= ${short(low)} and ${found.column} < ${short(high)}` },
  );
}

function literal(name) {
  return name === "true" || name === "false" ? name : JSON.stringify(name);
}

function short(value) {
  return String(Number(value.toPrecision(12)));
}

/** Bars of a histogram, of each series side by side. */
function Bars({ found, onChoose }) {
  const bars = barsOf(found);
  const most = Math.max(1, ...bars.flatMap((bar) => bar.sizes));
  const said = (bar) =>
    found.series.length > 1
      ? bar.sizes.map((size, at) => `${found.series[at]}: ${number(size)}`).join(", ")
      : number(bar.size);
  return html`<div class="bars">
    ${bars.map(
      (bar) => html`<button class="bar-column" disabled=${isReport} title=${`${bar.label}: ${said(bar)}`} onClick=${() => onChoose(bar.condition)}>
        <span class="size">${number(bar.size)}</span>
        <span class="fills">${bar.sizes.map(
          (size, at) => html`<span class=${`bar-fill series-${at}`} style=${{ height: `${size && Math.max(2, (size / most) * 100)}px` }}></span>`,
        )}</span>
        <span class="name">${bar.label}</span>
      </button>`,
    )}
  </div>`;
}

/** Which colour is which series, where there are several. */
function Legend({ names }) {
  if (names.length < 2) return null;
  return html`<p class="legend">${names.map((name, at) => html`<span><i class=${`series-${at}`}></i> ${name}</span>`)}</p>`;
}

export function PlotsView({ place, state }) {
  const { found, error } = useAnswer("/api/plots", queryOf(place), state.version);
  if (error) return html`<main><p class="error" role="alert">${error}</p></main>`;
  if (!found) return html`<main><p class="note" role="status">Counting ${place.where || place.search ? "the rows of the filter" : `${number(state.rows)} rows`}…</p></main>`;
  const narrow = (condition) => go({ ...place, view: "table", where: place.where ? `(${place.where}) and ${condition}` : condition });
  return html`<main class="plots">
    <h1 class="heard">Plots</h1>
    ${!state.is_complete && html`<p class="note" role="status">These are the ${number(state.rows)} rows read so far: ${Math.round(state.progress * 100)} % of the files.</p>`}
    ${found.is_done === false && html`<p class="note" role="status">These are the rows found so far; the search goes on.</p>`}
    <${Parts} parts=${found.parts} />
    <${Legend} names=${found.series} />
    <div class="grid">
      <figure><figcaption>Reward <${Save} title="Reward" x="reward" names=${found.series} found=${found.reward} /></figcaption><${Bars} found=${found.reward} onChoose=${narrow} /></figure>
      ${found.learning.length > 0 &&
      html`<figure><figcaption>Learning <${Save} title="Learning" x="version of the policy" y="mean reward" names=${found.learning.map((each) => each.name)} lines=${found.learning.map((each) => each.points)} /></figcaption><${Learning} curves=${found.learning} /></figure>`}
      <figure><figcaption>Reward over time <${Save} title="Reward over time" x="time (UTC)" y="mean reward" names=${found.series} isTime=${true} lines=${found.over_time} /></figcaption><${Plot} make=${(data) => overTime(data, found.series)} data=${found.over_time} /></figure>
      <figure><figcaption>Output tokens against reward <small>a click opens the rollout</small>
        <${Save} title="Output tokens against reward" x="output tokens" y="reward" names=${found.series} points=${found.length.points.map(([one, other, , size, of]) => [one, other, of, size])} /></figcaption>
        <${Scatter} data=${found.length} names=${found.series} onOpen=${(id) => openRow(place, id)} onNarrow=${narrow} /></figure>
      <figure><figcaption>Output tokens <${Save} title="Output tokens" x="output tokens" names=${found.series} found=${found.output_tokens} /></figcaption><${Bars} found=${found.output_tokens} onChoose=${narrow} /></figure>
      <figure><figcaption>Duration <${Save} title="Duration" x="seconds" names=${found.series} found=${found.duration_s} /></figcaption><${Bars} found=${found.duration_s} onChoose=${narrow} /></figure>
      <figure><figcaption>Cost <${Save} title="Cost" x="US dollars" names=${found.series} found=${found.cost_usd} /></figcaption><${Bars} found=${found.cost_usd} onChoose=${narrow} /></figure>
    </div>
  </main>`;
}

/** A button that saves a figure; `found` is a histogram. */
function Save({ title, x, y = "rollouts", names, found, ...values }) {
  const write = () => save(`${title.toLowerCase().replaceAll(" ", "_")}.svg`, drawSvg({ title, x, y, names, ...values, bars: found && barsOf(found) }));
  return html`<button class="copy" onClick=${write}>save as SVG</button>`;
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

function overTime(data, names) {
  const times = [...new Set(data.flatMap((each) => each.map(([time]) => time)))].sort((one, other) => one - other);
  const values = data.map((each) => {
    const known = new Map(each.map(([time, mean]) => [time, mean]));
    return times.map((time) => known.get(time) ?? null);
  });
  return {
    options: {
      axes: axes(),
      scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(1, high)] } },
      series: [
        {},
        ...data.map((each, at) => ({
          label: names[at] || "reward",
          stroke: colour(`--series-${at}`),
          width: 2,
          spanGaps: true,
          points: { show: each.length < 40 },
        })),
      ],
    },
    series: [times, ...values],
  };
}

const NEAR_PX = 12;

/** Points of two columns; a click opens the rollout of the nearest one, or lists those that share it. */
function Scatter({ data, names, onOpen, onNarrow }) {
  const { points, total, drawn, missing } = data;
  const choose = ([tokens, reward, id]) => {
    const same = points.filter((each) => each[0] === tokens && each[1] === reward);
    const isShared = same.reduce((sum, each) => sum + each[3], 0) > 1;
    if (isShared && !isReport) onNarrow(`output_tokens == ${tokens} and reward == ${reward}`);
    else onOpen(id);
  };
  return html`<${Plot} make=${(each) => scatter(each, names, choose)} data=${points} />
    ${(missing > 0 || drawn < total) &&
    html`<p class="note">${drawn < total && `${number(drawn)} of ${count(total, "rollout")} are drawn. `}${
      missing > 0 && `${count(missing, "row")} without a reward or tokens.`
    }</p>`}`;
}

function scatter(points, names, onChoose) {
  const [across, up] = axes();
  const sorted = [...points].sort((one, other) => one[0] - other[0]);
  const padded = (low, high) => [low - (high - low || 1) * 0.05, high + (high - low || 1) * 0.05];
  const rewards = points.map((each) => each[1]);
  const choose = (plot, event) => {
    const edge = plot.over.getBoundingClientRect();
    const far = ([tokens, reward]) =>
      Math.hypot(plot.valToPos(tokens, "x") - (event.clientX - edge.left), plot.valToPos(reward, "y") - (event.clientY - edge.top));
    const nearest = points.reduce((one, other) => (far(other) < far(one) ? other : one));
    if (far(nearest) <= NEAR_PX) onChoose(nearest);
  };
  return {
    options: {
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: true, y: false } },
      axes: [{ ...across, label: "output tokens" }, { ...up, label: "reward" }],
      scales: {
        x: { time: false, range: (_, low, high) => padded(low, high) },
        y: { range: () => padded(Math.min(0, ...rewards), Math.max(1, ...rewards)) },
      },
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        ready: [(plot) => plot.over.addEventListener("click", (event) => choose(plot, event))],
        draw: [(plot) => drawPoints(plot, points, names)],
      },
    },
    series: [sorted.map((each) => each[0]), sorted.map((each) => each[1])],
  };
}

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Draws each point over a plot, as uPlot leaves out points that share their place on the x axis. */
function drawPoints(plot, points, names) {
  const drawn = points.map(([tokens, reward, id, size, of]) => {
    const said = `${names[of] ? `${names[of]}: ` : ""}${number(tokens)} tokens, reward ${number(reward)}${size > 1 ? `, ${count(size, "rollout")}` : ""}`;
    const place = { cx: plot.valToPos(tokens, "x"), cy: plot.valToPos(reward, "y"), r: Math.min(9, 3 + Math.log2(size)) };
    return make("circle", { class: `point series-${of}`, "data-id": id, ...place }, make("title", {}, said));
  });
  const label = `output tokens against reward, ${count(points.length, "point")}`;
  plot.over.querySelector("svg")?.remove();
  plot.over.append(make("svg", { class: "scatter", role: "img", "aria-label": label }, ...drawn));
}
