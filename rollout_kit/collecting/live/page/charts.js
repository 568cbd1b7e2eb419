// How the figures went since the start of the run. What came before the page was opened is asked
// once; after that each snapshot adds a point.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { get } from "./ask.js";
import { axes, colour } from "./plot.js";

const KEPT = 1200;

const CHARTS = [
  { name: "Rollouts a second", series: [["rollouts a second", (points) => rates(points, 1)]] },
  { name: "Output tokens a second", series: [["tokens a second", (points) => rates(points, 6)]] },
  { name: "Reward", series: [["mean reward", (points) => column(points, 5)]] },
  { name: "In flight", series: [["in flight", (points) => column(points, 3)], ["limit", (points) => column(points, 4)]] },
];

export function Charts({ now }) {
  const points = useHistory(now);
  return html`<section class="grid" aria-label="plots">
    ${CHARTS.map((chart) => html`<figure><figcaption>${chart.name}</figcaption><${Chart} chart=${chart} points=${points} /></figure>`)}
  </section>`;
}

/** Points as the server sends them: elapsed_s, finished, failed, in flight, limit, reward, output tokens, US dollars. */
function useHistory(now) {
  const [before, setBefore] = useState(null);
  const after = useRef([]);
  useEffect(() => {
    get(`/api/history?run=${now.run_id}`).then(setBefore, () => setBefore([]));
  }, [now.run_id]);
  const last = after.current.at(-1)?.[0] ?? -1;
  if (now.elapsed_s > last) {
    const usd = now.cost?.usd ?? null;
    after.current.push([now.elapsed_s, now.finished, now.counts.failed, now.counts.in_flight, now.parallel.limit, now.reward?.value ?? null, now.output_tokens, usd]);
    if (after.current.length > KEPT) after.current = after.current.filter((_, index) => index % 2 === 0);
  }
  const first = after.current[0]?.[0] ?? 0;
  return [...(before ?? []).filter((point) => point[0] < first), ...after.current];
}

function Chart({ chart, points }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [points.map((point) => point[0]), ...chart.series.map(([, read]) => read(points))];
  useEffect(() => {
    const colours = [colour("--accent"), colour("--between")];
    const series = chart.series.map(([label], index) => ({ label, stroke: colours[index], width: 2, points: { show: false } }));
    const options = { width: place.current.clientWidth || 320, height: 150, axes: axes(), legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low), Math.max(high * 1.05, 1e-3)] } }, series: [{}, ...series] };
    plot.current = new globalThis.uPlot(options, data, place.current);
    return () => plot.current.destroy();
  }, []);
  useEffect(() => plot.current?.setData(data), [points.length, points.at(-1)?.[0]]);
  const values = data[1].filter((value) => value !== null);
  const text = values.length ? `${chart.name}: now ${values.at(-1).toPrecision(3)}, at most ${Math.max(...values).toPrecision(3)}` : `${chart.name}: no values yet`;
  return html`<div class="plot" ref=${place} role="img" aria-label=${text}></div>`;
}

function column(points, index) {
  return points.map((point) => point[index]);
}

/** Change a second over the ten seconds before each point. */
function rates(points, index) {
  let from = 0;
  return points.map((point, at) => {
    while (from < at - 1 && point[0] - points[from][0] > 10) from += 1;
    const passed = point[0] - points[from][0];
    return passed > 0 ? (point[index] - points[from][index]) / passed : null;
  });
}
