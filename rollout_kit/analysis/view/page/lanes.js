// Where the time of a rollout went, how its context grew, and the tokens of each turn.

import { html } from "./vendor/preact-htm.js";
import { count, dollars, number, seconds } from "./format.js";

const WIDTH = 1000;
const MAX_BARS = 500;

/** Neighbouring turns together, so that no more than MAX_BARS are drawn. */
function bundled(steps) {
  const size = Math.ceil(steps.length / MAX_BARS);
  if (size < 2) return steps.map((each) => ({ ...each, last: each.number, isError: each.tools.some((tool) => tool.is_error) }));
  const sum = (held, name) => (held.some((each) => each[name] !== undefined) ? held.reduce((total, each) => total + (each[name] ?? 0), 0) : undefined);
  return Array.from({ length: Math.ceil(steps.length / size) }, (_, at) => {
    const held = steps.slice(at * size, (at + 1) * size);
    return {
      ...held[0],
      ...Object.fromEntries(["model_s", "tool_s", "waited_s", "output", "cost_usd"].map((name) => [name, sum(held, name)])),
      input: held.at(-1).input,
      last: held.at(-1).number,
      isError: held.some((each) => each.tools.some((tool) => tool.is_error)),
    };
  });
}

export function Lanes({ steps, onGo }) {
  const bars = bundled(steps);
  const hasTime = bars.some((each) => each.model_s !== undefined || each.tool_s !== undefined);
  const hasTokens = bars.some((each) => each.input !== undefined || each.output !== undefined);
  if (steps.length < 2 || (!hasTime && !hasTokens)) return null;
  const spent = (each) => (each.model_s ?? 0) + (each.tool_s ?? 0) + (each.waited_s ?? 0);
  const total = bars.reduce((sum, each) => sum + spent(each), 0);
  const most = (name) => Math.max(1, ...bars.map((each) => each[name] ?? 0));
  const [mostInput, mostOutput] = [most("input"), most("output")];
  let at = 0;
  const places = bars.map((each) => {
    const width = hasTime && total ? (spent(each) / total) * WIDTH : WIDTH / bars.length;
    const x = at;
    at += width;
    return { x, width: Math.max(width, 0.5) };
  });
  const said = (each) =>
    [
      each.last === each.number ? `turn ${each.number}` : `turns ${each.number} to ${each.last}`,
      each.tools[0]?.name,
      ...["model", "tool", "waited"].filter((name) => each[`${name}_s`]).map((name) => `${name} ${seconds(each[`${name}_s`])}`),
      each.input !== undefined && `context ${count(each.input, "token")}${each.cached && each.last === each.number ? `, ${number(each.cached)} cached` : ""}`,
      each.output !== undefined && `${count(each.output, "token")} out`,
      each.cost_usd && dollars(each.cost_usd),
    ]
      .filter(Boolean)
      .join(", ");
  const lanes = ["model", "tool", "waited"].filter((name) => bars.some((each) => each[`${name}_s`]));
  const height = lanes.length * 12 + (hasTokens ? 74 : 0) + 4;
  const base = lanes.length * 12 + 38;
  return html`<figure class="lanes">
    <figcaption>${hasTime ? `Time: ${seconds(total)}` : "Turns"}
      <span class="legend">${lanes.map((name) => html`<span><i class=${`lane-${name}`}></i> ${{ model: "model", tool: "tool", waited: "waiting" }[name]}</span>`)}
      ${hasTokens && html`<span><i class="lane-input"></i> context, at most ${number(mostInput)} tokens</span><span><i class="lane-output"></i> tokens a turn, at most ${number(mostOutput)}</span>`}
      </span></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" role="img" aria-label=${`time and tokens of ${count(steps.length, "turn")}`}>
      ${bars.map((each, n) => {
        const { x, width } = places[n];
        let from = x;
        return html`<g class="lane-turn" onClick=${() => onGo(each.number)}>
          <title>${said(each)}</title>
          <rect class=${each.isError ? "lane-error" : "lane-back"} x=${x} y="0" width=${width} height=${height} />
          ${lanes.map((name, lane) => {
            const own = total ? ((each[`${name}_s`] ?? 0) / total) * WIDTH : 0;
            const drawn = html`<rect class=${`lane-${name}`} x=${from} y=${lane * 12} width=${own} height="10" />`;
            from += own;
            return drawn;
          })}
          ${each.input !== undefined && html`<rect class="lane-input" x=${x} y=${base - (each.input / mostInput) * 34} width=${width} height=${(each.input / mostInput) * 34} />`}
          ${each.output !== undefined && html`<rect class="lane-output" x=${x} y=${base + 36 - (each.output / mostOutput) * 34} width=${width} height=${(each.output / mostOutput) * 34} />`}
        </g>`;
      })}
    </svg>
  </figure>`;
}
