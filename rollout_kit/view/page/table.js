// The table of all rollouts. Only the rows in sight are asked for and drawn, so a million rows cost
// what thirty cost. A browser limits the height of an element, so the scrollbar is mapped to rows.

import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { cell, rewardClass } from "./format.js";
import { go, queryOf, rolloutPlace } from "./place.js";
import { Histogram } from "./plots.js";

const ROW = 28;
const MAX_HEIGHT = 8_000_000;
const BLOCK = 100;
const POLL_MS = 300;

const USUAL = [
  "reward",
  "status",
  "task_id",
  "rollout_index",
  "num_turns",
  "num_tool_calls",
  "output_tokens",
  "cost_usd",
  "duration_s",
  "finish_reason",
  "model",
];

export function columnsOf(state) {
  const scores = state.columns.filter((column) => column.is_score).map((column) => column.name);
  return ["reward", "group_reward", "status", "file", "task_id", "agent", "scope", "arm", "rollout_index", ...scores]
    .concat(state.columns.map((column) => column.name).filter((name) => name !== "kind"))
    .concat("answer", "labels")
    .filter((name, at, all) => all.indexOf(name) === at)
    .filter((name) => state.columns.some((column) => column.name === name) || ["status", "file", "task_id", "answer", "labels"].includes(name) || (name === "group_reward" && hasGroups(state)) || (name === "arm" && hasArms(state)));
}

function hasGroups(state) {
  return state.files.some((file) => file.has_groups);
}

function hasArms(state) {
  return state.files.some((file) => file.has_arms);
}

function usualColumns(state) {
  const scores = state.columns.filter((column) => column.is_score).slice(0, 4).map((column) => column.name);
  const several = state.files.length > 1 ? ["file"] : [];
  const groups = hasGroups(state) ? ["group_reward"] : [];
  const arms = hasArms(state) ? ["arm"] : [];
  return [...several, ...USUAL.slice(0, 1), ...groups, ...USUAL.slice(1, 3), ...arms, ...USUAL.slice(3, 4), "answer", ...scores, ...USUAL.slice(4), "labels"];
}

/** The rows of a query: blocks that were asked for, and how many rows there are. */
function useRows(query, version) {
  const [, redraw] = useState(0);
  const held = useRef({ key: "", blocks: new Map(), stale: new Map(), total: 0, searched: 0, isDone: false, error: "" });
  const key = JSON.stringify(query);
  if (held.current.key !== key)
    held.current = { key, blocks: new Map(), stale: new Map(), total: 0, searched: 0, isDone: false, error: "" };
  const current = held.current;
  const load = useCallback(
    async (block) => {
      if (current.blocks.has(block)) return;
      current.blocks.set(block, null);
      try {
        const found = await get("/api/rows", { ...query, start: block * BLOCK, count: BLOCK });
        Object.assign(current, { total: found.total, searched: found.searched, isDone: found.is_done, error: found.error });
        const isWhole = found.rows.length === BLOCK || found.is_done;
        if (isWhole) current.blocks.set(block, found.rows);
        else current.blocks.delete(block);
        current.stale.set(block, found.rows);
        if (!found.is_done) setTimeout(() => held.current === current && refresh(block), POLL_MS);
      } catch (error) {
        current.blocks.delete(block);
        current.error = error.message;
      }
      redraw((each) => each + 1);
    },
    [current],
  );
  const refresh = (block) => {
    current.blocks.delete(block);
    load(block);
  };
  useEffect(() => {
    current.blocks.clear(); // rows so far stay in sight until the new ones are there
    load(0);
    return () => {
      if (!current.isDone) fetch(`/api/cancel?${new URLSearchParams(query)}`, { method: "POST", headers: { "content-type": "application/json" } }).catch(() => {});
    };
  }, [key, version]);
  const row = (number) => {
    const block = Math.floor(number / BLOCK);
    if (!current.blocks.has(block)) queueMicrotask(() => load(block));
    return (current.blocks.get(block) ?? current.stale.get(block))?.[number - block * BLOCK];
  };
  return { ...current, row };
}

export function TableView({ place, state }) {
  const query = queryOf(place);
  const rows = useRows(query, state.version);
  const [columns, setColumns] = useState(() => stored() ?? usualColumns(state));
  const [selected, setSelected] = useState(0);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const scroller = useRef(null);
  const whole = Math.min(rows.total * ROW, MAX_HEIGHT);
  const visible = Math.max(1, Math.floor(height / ROW) - 1);
  const last = Math.max(0, rows.total - visible);
  const isMapped = rows.total * ROW > MAX_HEIGHT;
  const first = Math.min(last, isMapped ? Math.round((top / Math.max(1, whole - height)) * last) : Math.floor(top / ROW));
  const scrollTo = (number) => {
    const wanted = Math.max(0, Math.min(last, number));
    const target = isMapped ? (wanted / Math.max(1, last)) * (whole - height) : wanted * ROW;
    if (scroller.current) scroller.current.scrollTop = target;
    setTop(target);
  };
  const select = (number) => {
    const wanted = Math.max(0, Math.min(rows.total - 1, number));
    setSelected(wanted);
    if (wanted < first) scrollTo(wanted);
    else if (wanted >= first + visible) scrollTo(wanted - visible + 1);
  };
  const open = (number) => {
    const row = rows.row(number);
    if (row) go(rolloutPlace(place, row));
  };
  useEffect(() => {
    const measure = () => setHeight(scroller.current?.clientHeight ?? 600);
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  useLayoutEffect(() => {
    const onKey = (event) => {
      if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey) return;
      const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: visible, PageUp: -visible };
      if (steps[event.key]) select(selected + steps[event.key]);
      else if (event.key === "Home") select(0);
      else if (event.key === "End") select(rows.total - 1);
      else if (event.key === "Enter" && event.target.tagName !== "BUTTON") open(selected);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  const onWheel = (event) => {
    if (!isMapped) return;
    event.preventDefault();
    scrollTo(first + Math.sign(event.deltaY) * Math.max(1, Math.round(Math.abs(event.deltaY) / ROW)));
  };
  const sortBy = (name) => {
    const falling = `-${name}`;
    go({ ...place, view: "table", sort: place.sort === falling ? name : place.sort === name ? "" : falling }, { replace: true });
  };
  const shown = Array.from({ length: Math.min(visible + 2, Math.max(0, rows.total - first)) }, (_, at) => first + at);
  return html`<main class="table-view">
    <div class="bar">
      <span class="note" role="status">${describe(rows, state)}</span>
      <${JumpToTask} place=${place} />
      <button onClick=${() => go({ ...place, sort: `~${Math.floor(Math.random() * 1e6)}` })}>random sample</button>
      <${ColumnChoice} all=${columnsOf(state)} columns=${columns} onChange=${(each) => { store(each); setColumns(each); }} />
    </div>
    ${rows.error && html`<p class="error" role="alert">${rows.error}</p>`}
    ${place.column && html`<${Histogram} place=${place} column=${place.column} version=${state.version} />`}
    <div class="scroller" ref=${scroller} onScroll=${(event) => setTop(event.target.scrollTop)} onWheel=${onWheel}
         tabindex="0" role="region" aria-label="rollouts">
      <div class="canvas" style=${{ height: `${whole + ROW}px` }}>
        <table aria-rowcount=${rows.total} style=${{ transform: `translateY(${top}px)` }}>
          <thead><tr>
            ${columns.map(
              (name) => html`<th scope="col" aria-sort=${place.sort === name ? "ascending" : place.sort === `-${name}` ? "descending" : "none"}>
                ${canSort(name)
                  ? html`<button class="sort" onClick=${() => sortBy(name)}>${name}${place.sort === name ? " ↑" : place.sort === `-${name}` ? " ↓" : ""}</button>`
                  : name}
                ${canCount(name) &&
                html`<button class="chart" title=${`histogram of ${name}`} aria-label=${`histogram of ${name}`}
                  onClick=${() => go({ ...place, column: place.column === name ? "" : name }, { replace: true })}>▤</button>`}
              </th>`,
            )}
          </tr></thead>
          <tbody>
            ${shown.map((number) => {
              const row = rows.row(number);
              return html`<tr key=${number} class=${number === selected ? "selected" : ""} aria-rowindex=${number + 1}
                  onClick=${() => { setSelected(number); open(number); }}>
                ${columns.map((name) => html`<td class=${`column-${name}`}>${row ? cellOf(name, row[name]) : "…"}</td>`)}
              </tr>`;
            })}
          </tbody>
        </table>
      </div>
    </div>
  </main>`;
}

function describe(rows, state) {
  const found = `${rows.total.toLocaleString("en-US")} of ${state.rows.toLocaleString("en-US")} rows`;
  if (!state.is_complete) return `${found} · reading ${Math.round(state.progress * 100)} %`;
  return rows.isDone ? found : `${found} · searched ${Math.round(rows.searched * 100)} %`;
}

function canSort(name) {
  return !["labels", "answer"].includes(name);
}

function canCount(name) {
  return !["labels", "task_id", "file", "answer", "group_reward"].includes(name);
}

function cellOf(name, value) {
  if (name === "reward") return html`<span class=${`reward ${rewardClass(value)}`}>${cell(name, value)}</span>`;
  if (name === "status") return html`<span class=${`status ${value}`}>${value}</span>`;
  const text = cell(name, value);
  if (name === "answer") return html`<span title=${text}>${text.length > 44 ? `…${text.slice(-44)}` : text}</span>`;
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

function JumpToTask({ place }) {
  const jump = (event) => {
    event.preventDefault();
    const task = new FormData(event.target).get("task").trim();
    if (task) go({ ...place, where: `task_id == ${JSON.stringify(task)}` });
  };
  return html`<form class="jump" onSubmit=${jump}>
    <input name="task" placeholder="jump to a task id" aria-label="jump to a task id" />
  </form>`;
}

function ColumnChoice({ all, columns, onChange }) {
  const toggle = (name) =>
    onChange(columns.includes(name) ? columns.filter((each) => each !== name) : all.filter((each) => each === name || columns.includes(each)));
  return html`<details class="columns">
    <summary>columns</summary>
    <div class="menu">
      ${all.map((name) => html`<label><input type="checkbox" checked=${columns.includes(name)} onChange=${() => toggle(name)} /> ${name}</label>`)}
    </div>
  </details>`;
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem("rollout-columns"));
  } catch {
    return null;
  }
}

function store(columns) {
  try {
    localStorage.setItem("rollout-columns", JSON.stringify(columns));
  } catch {
    // a page from a file may have no storage
  }
}
