// Learning curves of an RL run: mean rewards by version of the policy, with their intervals.

import { html } from "./vendor/preact-htm.js";
import { Plot, axes, colour } from "./plot.js";

const WHOLE = [1, 2, 5].flatMap((each) => [1, 10, 100, 1000, 10_000].map((power) => each * power)).sort((one, other) => one - other);

export function Learning({ curves }) {
  return html`<${Plot} make=${learning} data=${curves} />
    <p class="note">By version of the policy, with 95 % intervals. ${curves.some((each) => each.name.endsWith("training")) && "Training: of 2,000 rollouts at most."}</p>`;
}

function learning(curves) {
  const versions = [...new Set(curves.flatMap((each) => each.points.map(([version]) => version)))].sort((one, other) => one - other);
  const values = curves.map(({ points }) => {
    const known = new Map(points.map(([version, reward]) => [version, reward]));
    return versions.map((version) => known.get(version) ?? null);
  });
  const [across, up] = axes();
  return {
    options: {
      axes: [{ ...across, label: "version", incrs: WHOLE }, { ...up, label: "mean reward" }],
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low), Math.max(1, high)] } },
      series: [
        { label: "version" },
        ...curves.map(({ name }, at) => ({ label: name, stroke: colour(`--series-${at % 8}`), width: 2, spanGaps: true, points: { show: true } })),
      ],
      hooks: { draw: [(plot) => curves.forEach((each, at) => drawIntervals(plot, each.points, colour(`--series-${at % 8}`)))] },
    },
    series: [versions, ...values],
  };
}

function drawIntervals({ ctx, valToPos }, points, stroke) {
  ctx.save();
  ctx.strokeStyle = stroke;
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (const [version, , low, high] of points) {
    if (low === null || low === undefined) continue;
    const x = valToPos(version, "x", true);
    ctx.moveTo(x, valToPos(low, "y", true));
    ctx.lineTo(x, valToPos(high, "y", true));
  }
  ctx.stroke();
  ctx.restore();
}
