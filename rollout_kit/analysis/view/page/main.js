// The page: the bar at the top, and the view that the address names.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { get, isReport } from "./api.js";
import { CompareView } from "./compare.js";
import { GroupView } from "./group.js";
import { useKeys } from "./keys.js";
import { go, usePlace } from "./place.js";
import { PlotsView } from "./plots.js";
import { RolloutView } from "./rollout.js";
import { TableView } from "./table.js";
import { switchTheme } from "./theme.js";
import { PairView } from "./trails.js";

const POLL_MS = 1000;

const VIEWS = { table: "Rollouts", plots: "Plots", compare: "Compare" };

/** What there is; asked again each second, so that files that grow are followed. */
function useServer() {
  const [state, setState] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let timer;
    const ask = async () => {
      try {
        const found = await get("/api/state");
        setState((before) => (before && before.version === found.version && before.is_complete === found.is_complete ? before : found));
        setError("");
      } catch (problem) {
        setError(`The viewer does not answer: ${problem.message}`);
      }
      if (!isReport) timer = setTimeout(ask, document.hidden ? 10 * POLL_MS : POLL_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, []);
  return { state, error };
}

function Page() {
  const place = usePlace();
  const { state, error } = useServer();
  const [isHelpOpen, setHelp] = useState(false);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const show = (event) => setProblem(event.detail);
    addEventListener("rollouts:problem", show);
    return () => removeEventListener("rollouts:problem", show);
  }, []);
  useEffect(() => setProblem(""), [place]);
  useKeys((event) => {
    const target = { "/": "search", f: "where" }[event.key];
    if (target) {
      const inside = event.key === "/" && document.querySelector("input[name=inside]");
      (inside || document.querySelector(`input[name=${target}]`))?.focus();
      event.preventDefault();
    } else if (event.key === "?") setHelp((each) => !each);
  });
  const View = { plots: PlotsView, compare: CompareView, rollout: RolloutView, group: GroupView, pair: PairView }[place.view] ?? TableView;
  return html`<header class="top">
      <nav aria-label="views">
        ${Object.entries(VIEWS)
          .filter(([view]) => view !== "compare" || !isReport)
          .map(([view, name]) => html`<button aria-current=${(place.view || "table") === view ? "page" : undefined} onClick=${() => go({ ...place, view })}>${name}</button>`)}
      </nav>
      <${Filters} key=${`${place.where}|${place.search}`} place=${place} />
      <button class="quiet" aria-label="switch between light and dark" onClick=${switchTheme}>◐</button>
      <button class="quiet" aria-label="keys" aria-expanded=${isHelpOpen} onClick=${() => setHelp(!isHelpOpen)}>?</button>
    </header>
    ${isHelpOpen && html`<${Help} columns=${state?.columns ?? []} />`}
    ${(error || problem) && html`<p class="error" role="alert">${error || problem}</p>`}
    ${state ? html`<${Notes} state=${state} /><${View} place=${place} state=${state} version=${state.version} />` : !error && html`<p class="note">Loading…</p>`}`;
}

function Filters({ place }) {
  const form = useRef(null);
  const apply = (event) => {
    event.preventDefault();
    const { where, search } = Object.fromEntries(new FormData(form.current));
    const view = ["plots", "compare"].includes(place.view) ? place.view : "table";
    go({ view, sort: place.sort, column: place.column, where: (where ?? place.where).trim(), search });
    document.activeElement?.blur();
  };
  return html`<form class="filters" ref=${form} onSubmit=${apply} role="search">
    ${isReport
      ? html`<span class="note">${globalThis.ROLLOUT_REPORT.about}</span>`
      : html`<input name="where" class="where" value=${place.where} placeholder="filter: reward < 0.5 and num_turns > 8" aria-label="filter" spellcheck=${false} autocomplete="off" />`}
    <input name="search" value=${place.search} placeholder=${isReport ? "search" : "search: text or /regex/i"} aria-label="search in the text" spellcheck=${false} autocomplete="off" />
    <button>apply</button>
    ${(place.where || place.search) && html`<button type="button" onClick=${() => go({ ...place, where: "", search: "", column: "" })}>clear</button>`}
  </form>`;
}

function Notes({ state }) {
  const notes = state.files.flatMap((file) =>
    Object.entries(file.left_out).map(([reason, number]) => `${file.name}: left out: ${number.toLocaleString("en")} (${reason})`),
  );
  notes.unshift(...state.files.filter((file) => file.problem).map((file) => `${file.problem}${file.rollouts ? "; its rows so far are shown" : ""}`));
  return notes.map((note) => html`<p class="note warning">${note}</p>`);
}

function Help({ columns }) {
  return html`<section class="help" aria-label="help">
    <p><b>Keys:</b> j and k or the arrows step, Enter opens, / searches, f filters, ? closes this.</p>
    <p><b>In a rollout:</b> j and k step by turn, o opens or folds it, n and N go to the next and the last finding, g goes to a turn, / searches inside,
      r shows texts as they stand, l shows tokens with their log-probs, c shows the raw call of the turn, ← and → step to the neighbours, t shows all rollouts of the task, Esc goes back to the table.</p>
    <p><b>Filter:</b> Python's comparisons over ${columns.map((column) => html`<code>${column.name}</code> `)}
      <code>status</code> <code>task_id</code> <code>arm</code> <code>file</code> <code>text</code> and the fields of the line:${" "}
      <code>${'reward < 0.5 and finish_reason == "length"'}</code>, <code>"timeout" in text</code>, <code>extracted_answer == null</code>.</p>
  </section>`;
}

const root = document.getElementById("page");
root.textContent = "";
render(html`<${Page} />`, root);
