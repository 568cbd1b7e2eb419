// Rollouts next to each other, turn by turn, from the first turn in which they differ.

import { html, useState } from "./vendor/preact-htm.js";
import { useAnswer } from "./api.js";
import { count, number, rewardClass } from "./format.js";
import { useKeys } from "./keys.js";
import { go, rolloutPlace } from "./place.js";
import { advantagesOf } from "./tokens.js";

const ROWS = 60;

/** Members, each with `id`, `reward` and the key of its rollout; their turns as columns. Advantages are those in `group`. */
export function Trails({ members, names, place, version, group = [] }) {
  const ids = members.map((each) => each.id).join(",");
  const { found, error } = useAnswer(members.length > 1 ? "/api/trails" : "", { ids }, version);
  const [most, setMost] = useState(ROWS);
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!found) return members.length > 1 && html`<p class="note">Loading the turns…</p>`;
  const shown = members.slice(0, found.columns.length);
  const rows = found.rows ?? byNumber(found.columns);
  if (!rows.length) return html`<p class="note">All ${count(found.num_equal, "turn")} are the same.</p>`;
  const advantages = advantagesOf(shown, group);
  const cells = fold(rows);
  return html`<section class="trails" aria-label="turn by turn">
    <p class="note">${found.num_equal ? `The first ${count(found.num_equal, "turn")} are the same.` : "They differ from the first turn on."}</p>
    <div class="trails-scroll" tabindex="0" role="region" aria-label="turns side by side">
      <table>
        <thead><tr>${shown.map(
          (each, at) => html`<th scope="col">
            <a href="#" onClick=${open(place, each)}>${names[at]}</a>
            ${each.reward !== null && each.reward !== undefined && html` <span class=${`reward ${rewardClass(each.reward)}`}>${number(each.reward)}</span>`}
            ${advantages && html` <span class="note">advantage ${number(advantages[at])} ·</span>`}
            <span class="note"> ${count(found.num_turns[at], "turn")}</span>
          </th>`,
        )}</tr></thead>
        <tbody>${cells.slice(0, most).map((row) =>
          row.equal
            ? html`<tr class="equal"><td colspan=${shown.length}>${count(row.equal, "equal turn")}</td></tr>`
            : html`<tr>${row.places.map((at, column) => html`<td>${at !== null && at !== undefined && html`<${Turn} step=${found.columns[column][at]} open=${open(place, shown[column], found.columns[column][at].number)} />`}</td>`)}</tr>`,
        )}</tbody>
      </table>
    </div>
    ${cells.length > most && html`<button onClick=${() => setMost(most + 10 * ROWS)}>show more turns</button>`}
  </section>`;
}

function Turn({ step, open: openTurn }) {
  return html`<p class="turn-number"><a href="#" onClick=${openTurn}>${step.number}</a></p>
    ${step.says && html`<p class="says">${step.says}</p>`}
    ${step.tools.map(
      (tool) => html`<p class=${tool.is_error ? "tool failed" : "tool"}><b>${tool.name}</b> <code>${tool.argument}</code></p>
        ${tool.output !== null && html`<p class=${tool.is_error ? "output failed" : "output"}>${tool.output || "(no output)"}</p>`}`,
    )}`;
}

/** Rows of places in the columns: the nth turn of each. */
function byNumber(columns) {
  const length = Math.max(...columns.map((each) => each.length));
  return Array.from({ length }, (_, at) => columns.map((each) => (at < each.length ? at : null)));
}

/** The rows, with equal ones one after the other as one. */
function fold(rows) {
  const found = [];
  for (const row of rows) {
    const isEqual = row.at(-1) === true;
    if (isEqual && found.at(-1)?.equal) found.at(-1).equal += 1;
    else if (isEqual) found.push({ equal: 1 });
    else found.push({ places: row.filter((each) => typeof each !== "boolean") });
  }
  return found;
}

function open(place, row, turn) {
  return (event) => {
    event.preventDefault();
    go({ ...rolloutPlace(place, row), turn: turn ? String(turn) : "" });
  };
}

/** Two rollouts of any files, which the address names by their rows. */
export function PairView({ place, version }) {
  const ids = place.pair.split(",").slice(0, 2);
  const [one, other] = ids.map((id) => useAnswer("/api/rollout", { id }, version));
  useKeys((event) => event.key === "Escape" && history.back());
  const error = one.error || other.error;
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!one.found || !other.found) return html`<p class="note">Loading…</p>`;
  const members = [one.found, other.found].map((each) => ({ ...each.key, id: each.id, file: each.file, reward: each.line.reward }));
  return html`<main class="pair">
    <nav class="steps"><button onClick=${() => history.back()}>← back</button></nav>
    <h1>Task ${members[0].task_id}</h1>
    <${Trails} members=${members} names=${members.map((each) => `${each.file} #${each.rollout_index}`)} place=${place} version=${version} />
  </main>`;
}
