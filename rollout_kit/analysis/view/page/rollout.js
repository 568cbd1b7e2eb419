// One rollout: what was asked, what was done turn by turn, and the verdict.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { get, isReport, post, useAnswer } from "./api.js";
import { count, number, seconds, dollars } from "./format.js";
import { Inside, useMarks } from "./inside.js";
import { hasTokens, Items, KINDS } from "./items.js";
import { useKeys } from "./keys.js";
import { Lanes } from "./lanes.js";
import { addressOf, go, noteTurn, queryOf, rolloutPlace } from "./place.js";
import { rememberRow } from "./position.js";
import { Copy, noteCuts, Reading, Text, visible } from "./texts.js";
import { Outline, TurnBody, TurnList, useItems } from "./turns.js";
import { notePlaces, useTraining } from "./tokens.js";
import { Explanation, Verdict, verdictOf } from "./verdict.js";

const MAX_OPEN = 30;

/** The rollout of a place. Row numbers change when a file is edited, so it is found by its key. */
export function useRollout(place, state) {
  const { file, task_id, agent, scope, rollout_index } = place;
  const [isSettled, setSettled] = useState(true);
  const version = isSettled ? settledVersion(state, file) : state.version;
  const { found, error } = useAnswer("/api/rollout", { file, task_id, agent, scope, rollout_index }, version, findRollout);
  useEffect(() => setSettled(!found || found.status === "verified"), [found]);
  const { found: more, error: problem } = useAnswer(found?.findings === null ? "/api/findings" : "", { id: found?.id }, version);
  const rollout = useMemo(() => (found && more ? { ...found, ...more } : found), [found, more]);
  return { rollout, error: error || problem };
}

/** What a rollout with a verdict can still change by: another file that grows is none of it. */
function settledVersion(state, name) {
  const file = state.files.find((each) => each.name === name);
  return JSON.stringify([state.generation, file?.labels_version, file?.has_groups]);
}

async function findRollout(path, key) {
  const { id } = await get("/api/find", key);
  const found = await get(path, { id });
  noteCuts(id, found.line, found.cuts);
  return found;
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

export function RolloutView({ place, state, version }) {
  const { rollout, error } = useRollout(place, state);
  const id = rollout?.id;
  const { found: around } = useAnswer(id === undefined ? "" : "/api/neighbours", { ...queryOf(place), id }, version);
  const scroller = useRef(null);
  const back = () => go({ ...queryOf(place), view: "table" });
  const step = (target) => target !== null && target !== undefined && openRow({ ...place, turn: "" }, target);
  useEffect(() => {
    if (around && around.position !== null) rememberRow(queryOf(place), around.position);
  }, [around?.position]);
  useEffect(() => scroller.current?.focus({ preventScroll: true }), [id]);
  useKeys((event) => {
    if (event.key === "ArrowRight") step(around?.next);
    else if (event.key === "ArrowLeft") step(around?.previous);
    else if (event.key === "Escape") back();
    else if (event.key === "t") go({ ...place, turn: "", view: "group" });
  });
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!rollout) return html`<p class="note">Loading…</p>`;
  return html`<main class="rollout" ref=${scroller} tabindex="0" aria-label="the rollout">
    <nav class="steps" aria-label="neighbours">
      <button onClick=${back}>← table</button>
      <button disabled=${!around || around.previous === null} onClick=${() => step(around.previous)}>previous (←)</button>
      <button disabled=${!around || around.next === null} onClick=${() => step(around.next)}>next (→)</button>
      <span class="note">
        ${around && around.position !== null
          ? `${number(around.position + 1)} of ${number(around.total)}`
          : around?.is_done === false
            ? "searching…"
            : "not in the present filter"}
      </span>
      <button onClick=${() => go({ ...place, turn: "", view: "group" })}>all rollouts of this task (t)</button>
    </nav>
    <${Rollout} key=${JSON.stringify([rollout.file, rollout.key])} rollout=${rollout} place=${place} scroller=${scroller} />
  </main>`;
}

/** Which turns are open, which one the reader is at, and the keys that move. */
function useTurns(rollout, place, isPrinting) {
  const steps = rollout.steps ?? [];
  const [opened, setOpened] = useState({});
  const [isAllOpen, setAllOpen] = useState(steps.length <= MAX_OPEN);
  const [current, setCurrent] = useState(0);
  const [wanted, setWanted] = useState(null);
  const isOpen = (step) => isPrinting || (opened[step.number] ?? isAllOpen);
  const goTo = (turn, { opens = true, item = 0 } = {}) => {
    const number = Math.max(1, Math.min(steps.length, turn));
    if (!steps.length) return;
    setCurrent(number);
    if (opens) setOpened((before) => ({ ...before, [number]: true }));
    setWanted({ number, item });
    noteTurn(place, item ? `${number}.${item}` : number);
  };
  const toggle = (step) => {
    setCurrent(step.number);
    setOpened((before) => ({ ...before, [step.number]: !isOpen(step) }));
  };
  const setAll = (each) => {
    setOpened({});
    setAllOpen(each);
  };
  useEffect(() => {
    const [turn, item] = place.turn.split(".").map((each) => parseInt(each, 10) || 0);
    if (place.turn) goTo(turn || 1, { item });
  }, [place.turn]);
  return { steps, isOpen, isAllOpen, setAll, current, goTo, toggle, wanted };
}

/** The search inside: what was found, and the place that the reader is at. */
function useInside(rollout, place, turns) {
  const [text, setText] = useState(/^\/.+\/[im]*$/.test(place.search) ? "" : place.search);
  const { found, error } = useAnswer(text ? "/api/inside" : "", { id: rollout.id, text }, rollout);
  const [at, setAt] = useState(0);
  const [sought, setSought] = useState(null);
  const show = (number) => {
    const hit = found?.hits[number];
    if (!hit) return;
    setAt(number);
    if (hit.turn > 0) turns.goTo(hit.turn);
    const nth = found.hits.slice(0, number).filter((each) => each.turn === hit.turn).length;
    setSought({ turn: hit.turn, nth });
  };
  useEffect(() => {
    if (found && !place.turn) show(0);
  }, [found]);
  const search = (each) => {
    setAt(0);
    setSought(null);
    setText(each);
  };
  const step = (by) => found && show((at + by + found.hits.length) % found.hits.length);
  return { text, found, error, at, sought, search, step };
}

/** Whether the page is being printed, with all turns open; and what prints it once their items are there. */
function usePrinting(scroller) {
  const [isPrinting, setPrinting] = useState(false);
  const [isAsked, setAsked] = useState(false);
  useEffect(() => {
    const begin = () => setPrinting(true);
    const end = () => {
      setPrinting(false);
      setAsked(false);
    };
    addEventListener("beforeprint", begin);
    addEventListener("afterprint", end);
    return () => {
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    };
  }, []);
  useEffect(() => {
    if (!isAsked) return;
    const look = () => {
      if (scroller.current.querySelector(".turn-body .loading")) return;
      clearInterval(timer);
      print();
    };
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [isAsked]);
  return { isPrinting: isPrinting || isAsked, print: () => setAsked(true) };
}

function Rollout({ rollout, place, scroller }) {
  const [hidden, setHidden] = useState([]);
  const [showTokens, setTokens] = useState(false);
  const [isRaw, setRaw] = useState(false);
  const { isPrinting, print } = usePrinting(scroller);
  const { key, unfinished } = rollout;
  const line = { ...rollout.line.answered, ...unfinished?.task, ...rollout.line };
  const asked = inputOf(line.responses_create_params?.input);
  const instructions = line.responses_create_params?.instructions;
  if (typeof instructions === "string") asked.unshift({ role: "system", content: instructions });
  const output = Array.isArray(line.response?.output) ? line.response.output : (unfinished?.turns ?? []);
  useMemo(() => notePlaces(output, 0), [rollout]);
  const turns = useTurns(rollout, place, isPrinting);
  const inside = useInside(rollout, place, turns);
  useMarks(scroller, inside.text, inside.sought);
  const itemsOf = useItems(rollout, output);
  const findings = rollout.findings ?? [];
  const ofTurns = useMemo(() => Map.groupBy(findings, (each) => each.turn), [rollout]);
  const stops = useMemo(() => [...new Set(findings.map((each) => each.turn))].sort((one, other) => (one || Infinity) - (other || Infinity)), [rollout]);
  const toFinding = (by) => {
    const at = turns.current || (by > 0 ? 0 : Infinity);
    const known = stops.filter((each) => each > 0);
    const next = by > 0 ? known.find((each) => each > at) : known.findLast((each) => each < at);
    if (next) turns.goTo(next);
    else if (stops.includes(0)) document.querySelector(".explanation")?.scrollIntoView();
    else if (known.length) turns.goTo(by > 0 ? known[0] : known.at(-1));
  };
  useKeys((event) => {
    if (event.key === "j") turns.goTo(turns.current + 1, { opens: false });
    else if (event.key === "k") turns.goTo(turns.current - 1, { opens: false });
    else if (event.key === "n") toFinding(1);
    else if (event.key === "N") toFinding(-1);
    else if (event.key === "g") document.querySelector("input[name=turn]")?.select();
    else if (event.key === "r") setRaw(!isRaw);
    else if (event.key === "l") setTokens(!showTokens);
    else if (event.key === "c" && turns.current) {
      turns.goTo(turns.current);
      call.toggle(turns.current);
    } else if (event.key === "o" && turns.current) turns.toggle(turns.steps[turns.current - 1]);
    else return;
    event.preventDefault();
  });
  const [callOf, setCallOf] = useState(0);
  const call = { turn: callOf, toggle: (turn) => setCallOf(callOf === turn ? 0 : turn) };
  const training = useTraining(rollout, showTokens);
  const linkTo = (turn) => new URL(addressOf({ ...place, turn: String(turn) }), location.href).href;
  const commandOf = !isReport && rollout.line.response && (async (name, turn) => (await get("/api/request", { id: rollout.id, turn }))[name]);
  const items = (list) => html`<${Items} items=${list} hidden=${hidden} showTokens=${showTokens} />`;
  return html`<${Reading.Provider} value=${{ found: inside.text, isRaw, isPrinting, training }}><section>
    <header class="head">
      <h1>Task ${key.task_id} <small>rollout ${key.rollout_index}</small></h1>
      <p class="note">${rollout.file} · ${key.agent}${key.scope ? ` · ${key.scope}` : ""}</p>
      <${Verdict} rollout=${rollout} />
      <${Figures} line=${line} rollout=${rollout} />
      <${Labels} rollout=${rollout} />
    </header>
    <${Failure} line=${line} failures=${rollout.failures} />
    <${Found} rollout=${rollout} onGo=${turns.goTo} />
    <${Lanes} steps=${turns.steps} onGo=${turns.goTo} />
    <${Explanation} line=${line} findings=${findings} onQuote=${inside.search} />
    <${Bar} turns=${turns} inside=${inside} isRaw=${isRaw} setRaw=${setRaw} hidden=${hidden} setHidden=${setHidden} onPrint=${print}
      showTokens=${!rollout.has_items || hasTokens([...asked, ...output]) ? showTokens : null} setTokens=${setTokens} hasFindings=${stops.length > 0} onFinding=${toFinding} />
    <h2>Asked</h2>
    ${!asked.length && unfinished && html`<p class="note">The task is not in ${unfinished.task_from}.</p>`}
    ${items(asked)}
    <h2>Answered</h2>
    ${unfinished?.num_turns > 0 &&
    html`<p class="note">${count(unfinished.num_turns, "turn")} of this rollout ${unfinished.num_turns === 1 ? "is" : "are"} stored, with the beginning and the end of what the tools returned.</p>`}
    <div class=${turns.steps.length > 12 ? "answered outlined" : "answered"}>
      ${turns.steps.length > 12 && html`<${Outline} steps=${turns.steps} findings=${ofTurns} current=${turns.current} onGo=${turns.goTo} />`}
      <${TurnList} steps=${turns.steps} scroller=${scroller} isOpen=${turns.isOpen} current=${turns.current} findings=${ofTurns} wanted=${turns.wanted} onToggle=${turns.toggle}
        body=${(step) => html`<${TurnBody} step=${step} found=${itemsOf(step)} hidden=${hidden} showTokens=${showTokens} linkTo=${linkTo} commandOf=${commandOf} rollout=${rollout} call=${call} />`} />
    </div>
    ${!turns.steps.length && html`<p class="note">There is no response.${unfinished && " No turn of it is stored."}</p>`}
    <${Fields} line=${line} />
    <${Raw} rollout=${rollout} />
  </section><//>`;
}

const MAX_FOUND = 8;

const LOOK_MS = 100; // between two looks whether all that is to be printed has come

/** What is conspicuous, with a link to its turn. */
function Found({ rollout, onGo }) {
  const [isWhole, setWhole] = useState(false);
  const { findings = [], num_findings: total = 0 } = rollout;
  if (findings === null) return html`<p class="note" role="status">Looking for findings…</p>`;
  if (!findings.length) return null;
  const shown = isWhole ? findings : findings.slice(0, MAX_FOUND);
  return html`<section class="found" aria-label="findings">
    <b>${count(total, "finding")}</b> <span class="note">n and N step through them</span>
    <ul>${shown.map(
      (each) => html`<li>${each.turn > 0 ? html`<button onClick=${() => onGo(each.turn)}>turn ${number(each.turn)}</button>` : html`<span class="note">verdict</span>`}
        <b>${each.scanner.replaceAll("_", " ")}</b> ${visible(each.says)}</li>`,
    )}</ul>
    ${shown.length < findings.length && html`<button class="more" onClick=${() => setWhole(true)}>show ${number(findings.length - shown.length)} more</button>`}
  </section>`;
}

/** What stays in sight above the turns: moving, searching, and what is shown. */
function Bar({ turns, inside, isRaw, setRaw, hidden, setHidden, showTokens, setTokens, hasFindings, onFinding, onPrint }) {
  const toggle = (kind) =>
    setHidden(hidden.includes(kind) ? hidden.filter((each) => each !== kind) : [...hidden, kind]);
  const jump = (event) => {
    event.preventDefault();
    turns.goTo(Number(new FormData(event.target).get("turn")) || 1);
    document.activeElement?.blur();
  };
  return html`<div class="tools turn-bar" role="group" aria-label="what is shown">
    ${turns.steps.length > 1 &&
    html`<form onSubmit=${jump}><label>turn <input name="turn" type="number" min="1" max=${turns.steps.length} key=${turns.current} defaultValue=${turns.current || ""} placeholder="g" aria-label="go to a turn" /></label> of ${number(turns.steps.length)}</form>
      <button onClick=${() => turns.setAll(!turns.isAllOpen)}>${turns.isAllOpen ? "fold all" : "open all"}</button>`}
    ${hasFindings && html`<button onClick=${() => onFinding(1)}>next finding (n)</button>`}
    <${Inside} text=${inside.text} found=${inside.found} at=${inside.at} error=${inside.error} onSearch=${inside.search} onStep=${inside.step} />
    <label><input type="checkbox" checked=${isRaw} onChange=${() => setRaw(!isRaw)} /> raw (r)</label>
    ${KINDS.map(
      (kind) =>
        html`<label><input type="checkbox" checked=${!hidden.includes(kind)} onChange=${() => toggle(kind)} /> ${kind}</label>`,
    )}
    ${showTokens !== null && html`<label><input type="checkbox" checked=${showTokens} onChange=${() => setTokens(!showTokens)} /> tokens (l)</label>`}
    <button onClick=${onPrint}>print</button>
  </div>`;
}

function inputOf(input) {
  if (typeof input === "string") return [{ role: "user", content: input }];
  return Array.isArray(input) ? [...input] : [];
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
  const scores = new Set(verdictOf(line).known);
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
    <p>
      <${Copy} name="copy the line as JSON" text=${() => wholeLine(rollout)} />
      ${!isReport && rollout.repro && html`<${Copy} name="copy the command that makes it again" text=${rollout.repro} />`}
    </p>
    ${!isReport && html`<p><a href=${`/api/raw?id=${rollout.id}`} download>Download the line as it stands in the file</a></p>`}`;
}


/** The line as it stands in the file, or as the report holds it. */
async function wholeLine(rollout) {
  if (isReport) return JSON.stringify(rollout.line);
  return (await fetch(`/api/raw?id=${rollout.id}`)).text();
}
