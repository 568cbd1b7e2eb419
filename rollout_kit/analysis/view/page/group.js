// All rollouts of a task side by side: equal answers merged, two of them compared word by word.

import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { isReport, useAnswer } from "./api.js";
import { cell, count, number, rewardClass } from "./format.js";
import { textOf } from "./items.js";
import { Text } from "./texts.js";
import { useKeys } from "./keys.js";
import { go, queryOf, rolloutPlace } from "./place.js";
import { useRollout } from "./rollout.js";
import { Trails } from "./trails.js";

export function GroupView({ place, state, version }) {
  const { rollout, error: missing } = useRollout(place, state);
  const { found: group, error: wrong } = useAnswer(rollout ? "/api/group" : "", { id: rollout?.id }, version);
  const [chosen, setChosen] = useState([]);
  const merged = useMemo(() => merge(group?.members ?? []), [group]);
  const back = () => go({ ...queryOf(place), view: "table" });
  useKeys((event) => event.key === "Escape" && back());
  const error = missing || wrong;
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!group) return html`<p class="note">Loading…</p>`;
  const choose = ({ name }) =>
    setChosen(chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen.slice(-1), name]);
  const pair = chosen.map((name) => merged.find((each) => each.name === name)).filter(Boolean);
  const rewards = group.members.map((each) => each.reward).filter((each) => each !== null);
  const mean = rewards.reduce((sum, each) => sum + each, 0) / (rewards.length || 1);
  return html`<main class="group">
    <nav class="steps">
      <button onClick=${back}>← table</button>
      ${history.length > 1 && html`<button onClick=${() => history.back()}>← back</button>`}
    </nav>
    <h1>Task ${group.task_id}</h1>
    <p class="note">
      ${group.file} · ${count(group.num_members, "rollout")}, ${count(merged.length, "different answer")}
      ${rewards.length > 0 && ` · mean reward ${number(mean)}`}
      ${group.num_members > group.members.length && ` · the first ${group.members.length} are shown`}
    </p>
    ${group.figures && html`<dl class="figures">${Object.entries(group.figures).map(([name, value]) => html`<div><dt>${name}</dt><dd>${cell(name, value)}</dd></div>`)}</dl>`}
    <details open><summary>Asked</summary><${Text} text=${promptOf(group.members)} /></details>
    <p class="note">Mark two answers to compare them.</p>
    ${pair.length === 2 && html`<${Difference} one=${pair[0]} other=${pair[1]} />`}
    ${!isReport && hasTurns(group.members) && html`<${Trails} key=${chosen.join()} members=${columnsOf(group, pair, merged)} names=${columnsOf(group, pair, merged).map(nameOf)} place=${place} version=${version} group=${group.members} />`}
    <div class="members">
      ${merged.map(
        (each) => html`<article class="member">
          <header>
            <label><input type="checkbox" checked=${chosen.includes(each.name)} onChange=${() => choose(each)} /> compare</label>
            <span class=${each.first.status === "verified" ? `reward ${rewardClass(each.first.reward)}` : `status ${each.first.status}`}>
              ${each.first.status === "verified" ? number(each.first.reward) : each.first.status}
            </span>
            ${each.members.length > 1 && html`<b>× ${each.members.length}</b>`}
          </header>
          <p class="note">
            ${each.members.map(
              (member) =>
                html`<a href="#" onClick=${open(place, group, member)}>${nameOf(member)}</a>${" "}`,
            )}
          </p>
          <dl class="figures">
            ${Object.entries(each.first.scores)
              .filter(([, value]) => value !== null)
              .map(([name, value]) => html`<div><dt>${name}</dt><dd>${cell(name, value)}</dd></div>`)}
            ${each.first.group_reward !== undefined &&
            html`<div><dt>group reward</dt><dd>${number(each.first.group_reward)}</dd></div>`}
            <div><dt>output tokens</dt><dd>${number(each.first.output_tokens)}</dd></div>
          </dl>
          <${Text} text=${each.first.text || "(no text)"} />
        </article>`,
      )}
    </div>
  </main>`;
}

/** Whether the members do more than answer once. */
function hasTurns(members) {
  return members.some((each) => (each.num_turns ?? 0) > 1);
}

/** The two that are marked, or else one of each answer. */
function columnsOf(group, pair, merged) {
  return (pair.length === 2 ? pair : merged).map((each) => ({ ...each.first, file: group.file }));
}

function open(place, group, member) {
  return (event) => {
    event.preventDefault();
    go(rolloutPlace(place, { ...member, file: group.file }));
  };
}

function nameOf(member) {
  const arm = /(?:^|,)arm=([^,]*)/.exec(member.scope ?? "")?.[1];
  return `${arm ? `${arm} ` : ""}#${member.rollout_index}`;
}

/** Members that say the same, in the order of their rewards. */
function merge(members) {
  const found = new Map();
  for (const member of members) {
    const name = `${member.digest ?? member.id}|${member.reward}|${member.status}`;
    if (found.has(name)) found.get(name).members.push(member);
    else found.set(name, { name, first: member, members: [member] });
  }
  return [...found.values()].sort((one, other) => (other.first.reward ?? -1) - (one.first.reward ?? -1));
}

function promptOf(members) {
  const input = members.find((each) => each.prompt)?.prompt?.input;
  if (typeof input === "string") return input;
  return (input ?? []).map((item) => `${item.role ?? item.type}: ${textOf(item.content)}`).join("\n\n");
}

function Difference({ one, other }) {
  const parts = useMemo(
    () => globalThis.Diff.diffWordsWithSpace(one.first.text.slice(0, 50000), other.first.text.slice(0, 50000)),
    [one, other],
  );
  return html`<section class="difference">
    <h2>${nameOf(one.first)} against ${nameOf(other.first)}</h2>
    <div class="text">
      ${parts.map((part) =>
        part.added
          ? html`<ins>${part.value}</ins>`
          : part.removed
            ? html`<del>${part.value}</del>`
            : html`<span>${part.value}</span>`,
      )}
    </div>
  </section>`;
}
