// One rollout: what was asked, what was done, and the verdict.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { get, isReport, post, useAnswer } from "./api.js";
import { count, number, rewardClass, seconds, dollars } from "./format.js";
import { hasTokens, Items, KINDS, Text } from "./items.js";
import { useKeys } from "./keys.js";
import { go, queryOf, rolloutPlace } from "./place.js";

/** The rollout of a place. Row numbers change when a file is edited, so it is found by its key. */
export function useRollout(place, version) {
  const { file, task_id, agent, scope, rollout_index } = place;
  const { found, error } = useAnswer("/api/rollout", { file, task_id, agent, scope, rollout_index }, version, findRollout);
  return { rollout: found, error };
}

async function findRollout(path, key) {
  const { id } = await get("/api/find", key);
  return get(path, { id });
}

/** Opens a row of which only the number is known. */
export async function openRow(place, id, view = "rollout") {
  try {
    const { key, file } = await get("/api/rollout", { id });
    go({ ...rolloutPlace(place, { ...key, file }), view });
  } catch (error) {
    dispatchEvent(new CustomEvent("rollouts:problem", { detail: error.message }));
  }
}

export function RolloutView({ place, version }) {
  const { rollout, error } = useRollout(place, version);
  const id = rollout?.id;
  const { found: around } = useAnswer(id === undefined ? "" : "/api/neighbours", { ...queryOf(place), id }, version);
  const step = (target) => target !== null && target !== undefined && openRow(place, target);
  useKeys((event) => {
    if (event.key === "j" || event.key === "ArrowRight") step(around?.next);
    else if (event.key === "k" || event.key === "ArrowLeft") step(around?.previous);
    else if (event.key === "Escape") go({ ...queryOf(place), view: "table" });
    else if (event.key === "g") go({ ...place, view: "group" });
  });
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!rollout) return html`<p class="note">Loading…</p>`;
  return html`<main class="rollout">
    <nav class="steps" aria-label="neighbours">
      <button onClick=${() => go({ ...queryOf(place), view: "table" })}>← table</button>
      <button disabled=${!around || around.previous === null} onClick=${() => step(around.previous)}>previous (k)</button>
      <button disabled=${!around || around.next === null} onClick=${() => step(around.next)}>next (j)</button>
      <span class="note">
        ${around && around.position !== null
          ? `${number(around.position + 1)} of ${number(around.total)}`
          : around?.is_done === false
            ? "searching…"
            : "not in the present filter"}
      </span>
      <button onClick=${() => go({ ...place, view: "group" })}>all rollouts of this task (g)</button>
    </nav>
    <${Rollout} key=${JSON.stringify([rollout.file, rollout.key])} rollout=${rollout} />
  </main>`;
}

function Rollout({ rollout }) {
  const [hidden, setHidden] = useState([]);
  const [showTokens, setTokens] = useState(false);
  const { key, unfinished } = rollout;
  const line = { ...rollout.line.answered, ...unfinished?.task, ...rollout.line };
  const asked = inputOf(line.responses_create_params?.input);
  const instructions = line.responses_create_params?.instructions;
  if (typeof instructions === "string") asked.unshift({ role: "system", content: instructions });
  const output = Array.isArray(line.response?.output) ? line.response.output : (unfinished?.turns ?? []);
  const toggle = (kind) =>
    setHidden(hidden.includes(kind) ? hidden.filter((each) => each !== kind) : [...hidden, kind]);
  return html`<section>
    <header class="head">
      <h1>Task ${key.task_id} <small>rollout ${key.rollout_index}</small></h1>
      <p class="note">${rollout.file} · ${key.agent}${key.scope ? ` · ${key.scope}` : ""}</p>
      <${Verdict} rollout=${rollout} />
      <${Figures} line=${line} rollout=${rollout} />
      <${Labels} rollout=${rollout} />
    </header>
    <${Failure} line=${line} failures=${rollout.failures} />
    <div class="tools" role="group" aria-label="what is shown">
      ${KINDS.map(
        (kind) =>
          html`<label><input type="checkbox" checked=${!hidden.includes(kind)} onChange=${() => toggle(kind)} /> ${kind}</label>`,
      )}
      ${hasTokens([...asked, ...output]) &&
      html`<label><input type="checkbox" checked=${showTokens} onChange=${() => setTokens(!showTokens)} /> tokens</label>`}
    </div>
    <h2>Asked</h2>
    ${!asked.length && unfinished && html`<p class="note">The task is not in ${unfinished.task_from}.</p>`}
    <${Items} items=${asked} hidden=${hidden} showTokens=${showTokens} />
    <h2>Answered</h2>
    ${unfinished?.num_turns > 0 &&
    html`<p class="note">${count(unfinished.num_turns, "turn")} of this rollout ${unfinished.num_turns === 1 ? "is" : "are"} stored. The outputs of its tools are not.</p>`}
    <${Items} items=${output} hidden=${hidden} showTokens=${showTokens} />
    ${!output.length && html`<p class="note">There is no response.${unfinished && " No turn of it is stored."}</p>`}
    <${Fields} line=${line} />
    <${Raw} rollout=${rollout} />
  </section>`;
}

function inputOf(input) {
  if (typeof input === "string") return [{ role: "user", content: input }];
  return Array.isArray(input) ? [...input] : [];
}

function Verdict({ rollout }) {
  const { line, status } = rollout;
  const names = line.rollout?.scores ?? [];
  return html`<div class="verdict">
    <span class=${status === "verified" ? `reward ${rewardClass(line.reward)}` : `status ${status}`}>
      ${status === "verified" ? `reward ${number(line.reward)}` : status}
    </span>
    ${rollout.group && html`<span class="reward none">group reward ${number(rollout.group.reward)}</span>`}
    <dl>
      ${Object.entries(rollout.group?.components ?? {}).map(([name, value]) => html`<div><dt>group: ${name}</dt><dd>${shortly(value)}</dd></div>`)}
      ${names.map((name) => html`<div><dt>${name}</dt><dd>${shortly(line[name])}</dd></div>`)}
    </dl>
  </div>`;
}

function shortly(value) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}

function Figures({ line, rollout }) {
  const block = line.rollout ?? {};
  const usage = line.usage ?? {};
  const shown = [
    ["model", block.model],
    ["turns", number(block.num_turns)],
    ["tool calls", number(block.num_tool_calls)],
    ["tokens in / out", `${number(usage.input_tokens)} / ${number(usage.output_tokens)}`],
    ["cost", dollars(block.cost_usd)],
    ["time", seconds(block.duration_s)],
    ["model time", seconds(block.model_s)],
    ["finish reason", block.finish_reason],
    ["started", block.started_at?.replace("T", " ").slice(0, 19)],
    ["line", count(rollout.size, "byte")],
  ];
  return html`<dl class="figures">
    ${shown
      .filter(([, value]) => value && value !== "–")
      .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

function Labels({ rollout }) {
  const [labels, setLabels] = useState(rollout.labels);
  const [task, setTask] = useState(rollout.task_labels);
  const [error, setError] = useState("");
  useEffect(() => {
    setLabels(rollout.labels); // another reader may have set some
    setTask(rollout.task_labels);
  }, [rollout]);
  const send = async (body) => {
    try {
      const { labels: now } = await post("/api/labels", { id: rollout.id }, { ...body, key: rollout.key });
      (body.on === "task" ? setTask : setLabels)(now);
      setError("");
      return true;
    } catch (problem) {
      setError(problem.message);
      return false;
    }
  };
  const add = async (event) => {
    event.preventDefault();
    const form = event.target;
    if (await send(Object.fromEntries(new FormData(form)))) form.reset();
  };
  const chips = (held, on) =>
    Object.entries(held).map(
      ([label, note]) =>
        html`<span class="chip" title=${note}>
          ${on === "task" ? `task: ${label}` : label}${note ? ` – ${note}` : ""}
          ${!isReport &&
          html`<button aria-label=${`remove the label ${label}`} onClick=${() => send({ label, on, removed: true })}>×</button>`}
        </span>`,
    );
  return html`<div class="labels">
    ${chips(labels, "rollout")} ${chips(task, "task")}
    ${!isReport &&
    html`<form onSubmit=${add}>
      <input name="label" placeholder="label: bug, flaky, …" aria-label="label" required maxlength="100" list="usual-labels" />
      <datalist id="usual-labels"><option value="bug" /><option value="flaky" /><option value="good" /></datalist>
      <input name="note" placeholder="note" aria-label="note" maxlength="10000" />
      <select name="on" aria-label="label on"><option value="rollout">this rollout</option><option value="task">this task</option></select>
      <button>add</button>
    </form>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
  </div>`;
}

function Failure({ line, failures }) {
  const all = [...(line.failure ? [line] : []), ...failures];
  if (!all.length) return null;
  return html`<details class="failures" open=${Boolean(line.failure)}>
    <summary>${count(all.length, "failure")} of this rollout</summary>
    ${all.map((each) => {
      const tried = each.attempts ?? [each.failure];
      return html`<div class="failure">
        ${tried.map(
          (attempt) => html`<p><b>${attempt.class}</b>${attempt.server ? ` of ${attempt.server}` : ""}${attempt.status ? `, status ${attempt.status}` : ""}: ${attempt.message}</p>
            ${attempt.body && html`<${Text} text=${String(attempt.body)} />`}
            ${attempt.traceback && html`<${Text} text=${attempt.traceback} />`}`,
        )}
        ${each.repro && html`<p class="note">Repeat it with:</p><${Text} text=${each.repro} plain=${true} />`}
      </div>`;
    })}
  </details>`;
}

const OWN = new Set(["kind", "schema", "agent_ref", "_ng_task_index", "_ng_rollout_index", "reward", "usage", "rollout", "responses_create_params", "response", "failure", "attempts", "repro", "answered", "at", "attempt", "cost_usd"]);

function Fields({ line }) {
  const scores = new Set(line.rollout?.scores ?? []);
  const rest = Object.entries(line).filter(([name]) => !OWN.has(name) && !scores.has(name));
  if (!rest.length) return null;
  return html`<h2>Fields of the task</h2>
    <dl class="fields">
      ${rest.map(
        ([name, value]) =>
          html`<div><dt>${name}</dt><dd><${Text} text=${typeof value === "string" ? value : JSON.stringify(value, null, 2)} /></dd></div>`,
      )}
    </dl>`;
}

function Raw({ rollout }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="raw" onToggle=${(event) => setOpen(event.target.open)}>
      <summary>JSON of the line</summary>
      ${isOpen && html`<${Text} text=${JSON.stringify(rollout.line, null, 2)} />`}
    </details>
    ${!isReport && html`<p><a href=${`/api/raw?id=${rollout.id}`} download>Download the line as it stands in the file</a></p>`}`;
}

