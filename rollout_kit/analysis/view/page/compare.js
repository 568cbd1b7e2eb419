// Two files compared task by task: what may be concluded, then the tasks that differ.

import { html } from "./vendor/preact-htm.js";
import { isReport, useAnswer } from "./api.js";
import { count, number, rewardClass } from "./format.js";
import { go } from "./place.js";
import { openRow } from "./rollout.js";

const REWARDS = { reward: "each rollout's own reward", group_reward: "the reward in its group" };

export function CompareView({ place, state }) {
  const names = state.files.map((file) => file.name);
  const first = place.first || names[0];
  const second = place.second || names[1];
  const by = place.by || "";
  const { found, error } = useAnswer(second && !isReport ? "/api/compare" : "", { first, second, by }, state.version);
  if (isReport) return html`<main><p class="note">A report holds no comparison: use ng_compare.</p></main>`;
  if (names.length < 2)
    return html`<main><p class="note">There is one file only. Start ng_view with two or more files, or with their folder.</p></main>`;
  const choice = (name, value) =>
    html`<select aria-label=${`${name} file`} value=${value} onChange=${(event) => go({ ...place, first, second, [name]: event.target.value })}>
      ${names.map((each) => html`<option value=${each}>${each}</option>`)}
    </select>`;
  return html`<main class="compare">
    <h1>Compare ${choice("first", first)} with ${choice("second", second)}</h1>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${!found && !error && html`<p class="note">Comparing…</p>`}
    ${found?.can_be_by.length > 1 &&
    html`<p><label>By <select aria-label="reward" value=${found.by} onChange=${(event) => go({ ...place, first, second, by: event.target.value })}>
      ${found.can_be_by.map((each) => html`<option value=${each}>${REWARDS[each]}</option>`)}
    </select></label></p>`}
    ${found && html`<${Found} found=${found} place=${place} />`}
  </main>`;
}

function Found({ found, place }) {
  const [low, high] = found.interval ?? [null, null];
  return html`<p class="conclusion">${found.conclusion}</p>
    <table>
      <thead><tr><th></th><th>${found.by.replace("_", " ")}</th><th>rollouts</th></tr></thead>
      <tbody>
        ${[found.first, found.second].map(
          (side) => html`<tr><th>${side.file}</th><td>${number(side.reward)}</td><td>${number(side.rollouts)}</td></tr>`,
        )}
        <tr><th>difference</th><td>${number(found.difference)}${low !== null && ` [${number(low)}, ${number(high)}]`}</td>
          <td>${count(found.num_tasks, "common task")}</td></tr>
      </tbody>
    </table>
    <p>The second wins ${number(found.wins)}, loses ${number(found.losses)}, ties ${number(found.ties)}.
      ${found.only_first + found.only_second > 0 &&
      ` Not compared: ${number(found.only_first)} only in the first, ${number(found.only_second)} only in the second.`}</p>
    <h2>Tasks that differ ${found.num_flips > found.flips.length && html`<small>the first ${found.flips.length} of ${number(found.num_flips)}</small>`}</h2>
    <table class="flips">
      <thead><tr><th>task</th><th>first</th><th>second</th><th></th></tr></thead>
      <tbody>
        ${found.flips.map(
          (flip) => html`<tr>
            <td><code>${flip.task_id}</code></td>
            <td><span class=${`reward ${rewardClass(flip.first)}`}>${number(flip.first)}</span></td>
            <td><span class=${`reward ${rewardClass(flip.second)}`}>${number(flip.second)}</span></td>
            <td>${["first", "second"].map(
              (name, side) => html`<button onClick=${() => openRow(place, flip.rows[side][0], "group")}>${name} answers</button> `,
            )}<button onClick=${() => go({ ...place, view: "pair", pair: `${flip.rows[0][0]},${flip.rows[1][0]}` })}>side by side</button></td>
          </tr>`,
        )}
      </tbody>
    </table>`;
}
