// The table of all rollouts. Only the rows in sight are asked for and drawn, so a million rows cost
// what thirty cost. A browser limits the height of an element, so the scrollbar is mapped to rows.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { get, isReport, POLL_MS, post } from "./api.js";
import { cell, rewardClass } from "./format.js";
import { useKeys } from "./keys.js";
import { go, queryOf, rolloutPlace } from "./place.js";
import { Histogram } from "./plots.js";
import { rememberedRow, rememberRow } from "./position.js";

const ROW = 28;
const MAX_HEIGHT = 8_000_000;
const BLOCK = 100;

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
    .concat("answer", "labels", "scans")
    .filter((name, at, all) => all.indexOf(name) === at)
    .filter((name) => state.columns.some((column) => column.name === name) || ["status", "file", "task_id", "answer", "labels"].includes(name) || (name === "group_reward" && hasGroups(state)) || (name === "arm" && hasArms(state)) || (name === "scans" && hasScans(state)));
}

function hasGroups(state) {
  return state.files.some((file) => file.has_groups);
}

function hasArms(state) {
  return state.files.some((file) => file.has_arms);
}

function hasScans(state) {
  return state.files.some((file) => file.has_scans);
}

function usualColumns(state) {
  const scores = state.columns.filter((column) => column.is_score).slice(0, 4).map((column) => column.name);
  const several = state.files.length > 1 ? ["file"] : [];
  const groups = hasGroups(state) ? ["group_reward"] : [];
  const arms = hasArms(state) ? ["arm"] : [];
  const scans = hasScans(state) ? ["scans"] : [];
  return [...several, ...USUAL.slice(0, 1), ...groups, ...USUAL.slice(1, 3), ...arms, ...USUAL.slice(3, 4), "answer", ...scans, ...scores, ...USUAL.slice(4), "labels"];
}

/** The rows of a query, in blocks. A block in sight is asked for once for each version of the files;
 * again after a while if the query is still searched or the server has not answered. Rows so far stay
 * in sight meanwhile. */
function useRows(query, version) {
  const [, redraw] = useState(0);
  const held = useRef({});
  const key = JSON.stringify(query);
  if (held.current.key !== key) held.current = { key, blocks: new Map(), total: 0, searched: 0, isDone: false, error: "" };
  const current = held.current;
  const load = async (number) => {
    const block = current.blocks.get(number) ?? { rows: [], version: null, isAsked: false };
    if (block.isAsked || block.version === version) return;
    block.isAsked = true;
    current.blocks.set(number, block);
    try {
      const found = await get("/api/rows", { ...query, start: number * BLOCK, count: BLOCK });
      Object.assign(current, { total: found.total, searched: found.searched, isDone: found.is_done, error: found.error });
      block.rows = found.rows;
      if (found.is_done) block.version = version;
    } catch (error) {
      current.error = error.message;
    }
    const allow = () => {
      block.isAsked = false;
      redraw((each) => each + 1);
    };
    if (block.version === version) allow();
    else setTimeout(allow, POLL_MS);
    redraw((each) => each + 1);
  };
  useEffect(() => {
    if (!current.total) load(0); // no row is in sight that would ask
  });
  useEffect(
    () => () => {
      if (!current.isDone) post("/api/cancel", query, {}).catch(() => {});
    },
    [key],
  );
  const row = (number) => {
    const block = Math.floor(number / BLOCK);
    queueMicrotask(() => load(block));
    return current.blocks.get(block)?.rows[number - block * BLOCK];
  };
  return { ...current, row };
}

export function TableView({ place, state }) {
  const query = queryOf(place);
  const rows = useRows(query, state.version);
  const [chosen, setChosen] = useState(stored);
  const all = columnsOf(state);
  const columns = (chosen ?? usualColumns(state)).filter((name) => all.includes(name));
  const [selected, setSelected] = useState(rememberedRow(query));
  const isPlaced = useRef(selected === 0);
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
  useEffect(() => {
    if (isPlaced.current || rows.total <= selected || !whole) return;
    isPlaced.current = true;
    scrollTo(selected - Math.floor(visible / 2));
  }, [rows.total, whole]);
  const open = (number) => {
    rememberRow(query, number);
    const row = rows.row(number);
    if (row) go(rolloutPlace(place, row));
  };
  useEffect(() => {
    const measured = new ResizeObserver(([each]) => setHeight(each.target.clientHeight));
    measured.observe(scroller.current);
    return () => measured.disconnect();
  }, []);
  useKeys((event) => {
    const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: visible, PageUp: -visible };
    if (steps[event.key]) select(selected + steps[event.key]);
    else if (event.key === "Home") select(0);
    else if (event.key === "End") select(rows.total - 1);
    else if (event.key === "Enter" && !event.target.matches("button, summary, input")) open(selected);
    else return;
    event.preventDefault();
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
    <h1 class="heard">Rollouts</h1>
    <div class="bar">
      <span class="note" role="status">${describe(rows, state)}</span>
      ${!isReport &&
      html`<${JumpToTask} place=${place} />
        <button onClick=${() => go({ ...place, sort: `~${Math.floor(Math.random() * 1e6)}` })}>random sample</button>`}
      <${ColumnChoice} all=${all} columns=${columns} onChange=${(each) => { store(each); setChosen(each); }} />
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
  return !["labels", "scans", "task_id", "file", "answer", "group_reward"].includes(name);
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
    const names = JSON.parse(localStorage.getItem("rollout-columns"));
    return Array.isArray(names) ? names : null;
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
