// The turns of a rollout as a list of which only the part in sight is drawn: ten thousand cost what
// thirty cost. A turn has a head of one line, and its items below it when it is open.

import { html, useContext, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { get, useAnswer } from "./api.js";
import { count, dollars, number, seconds } from "./format.js";
import { Items, textOf } from "./items.js";
import { Copy, Reading, Text, noteCuts, visible } from "./texts.js";
import { notePlaces } from "./tokens.js";

const FOLDED = 32;
const OPEN = 240;
const BEYOND = 600;
const MAX_PRINTED = 500;
const DRAWN_WHOLE = 30;

/** The items of a turn: those of the line, or asked for. */
export function useItems(rollout, output) {
  const held = useRef(new Map());
  const [, redraw] = useState(0);
  const key = JSON.stringify([rollout.id, rollout.size]);
  if (held.current.key !== key) {
    held.current = new Map();
    held.current.key = key;
  }
  const own = held.current;
  return (step) => {
    if (rollout.has_items) return { items: output.slice(step.begin, step.end) };
    if (own.has(step.number)) return own.get(step.number);
    own.set(step.number, {});
    const load = async () => {
      try {
        const found = await get("/api/items", { id: rollout.id, begin: step.begin, end: step.end });
        noteCuts(rollout.id, { response: { output: { ...Object.fromEntries(found.items.map((item, at) => [step.begin + at, item])) } } }, found.cuts);
        notePlaces(found.items, step.begin);
        own.set(step.number, { items: found.items });
      } catch (error) {
        own.set(step.number, { error: error.message });
      }
      redraw((each) => each + 1);
    };
    load();
    return {};
  };
}

/** Where a turn stands, and what it takes in height. */
function offsetsOf(steps, heights, isOpen) {
  const offsets = new Float64Array(steps.length + 1);
  for (let at = 0; at < steps.length; at += 1) {
    offsets[at + 1] = offsets[at] + (heights.get(`${steps[at].number}${isOpen(steps[at]) ? "o" : "f"}`) ?? (isOpen(steps[at]) ? OPEN : FOLDED));
  }
  return offsets;
}

/** The list. `wanted` is what to bring into sight, a turn or a message of it: `{ number, item }`. */
export function TurnList({ steps, scroller, isOpen, current, findings, wanted, onToggle, body }) {
  const { isPrinting } = useContext(Reading);
  const list = useRef(null);
  const heights = useRef(new Map());
  const target = useRef(null);
  const [, redraw] = useState(0);
  const again = () => redraw((each) => each + 1);
  const offsets = offsetsOf(steps, heights.current, isOpen);
  const main = scroller.current;
  const seen = list.current && main ? main.getBoundingClientRect().top - list.current.getBoundingClientRect().top : 0;
  const height = main?.clientHeight ?? 800;
  let first = 0;
  let last = steps.length;
  if (steps.length > (isPrinting ? MAX_PRINTED : DRAWN_WHOLE)) {
    first = before(offsets, seen - BEYOND);
    last = Math.min(steps.length, before(offsets, seen + height + BEYOND) + 1);
  }
  useEffect(() => {
    let asked = 0;
    const onScroll = () => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(again);
    };
    const stop = () => (target.current = null);
    main?.addEventListener("scroll", onScroll, { passive: true });
    for (const name of ["wheel", "pointerdown", "touchmove"]) main?.addEventListener(name, stop, { passive: true });
    addEventListener("resize", onScroll);
    return () => {
      main?.removeEventListener("scroll", onScroll);
      for (const name of ["wheel", "pointerdown", "touchmove"]) main?.removeEventListener(name, stop);
      removeEventListener("resize", onScroll);
    };
  }, [main]);
  useEffect(() => again(), []);
  useLayoutEffect(() => {
    if (wanted) target.current = { ...wanted, tries: 12 };
    again();
  }, [wanted]);
  useLayoutEffect(() => {
    measure(list.current, heights.current, again);
    settle(main, list.current, target, steps, offsets, again);
  });
  return html`<div class="turn-list" ref=${list}>
    <div style=${{ height: `${offsets[first]}px` }}></div>
    ${steps.slice(first, last).map(
      (step) => html`<${Turn} key=${step.number} step=${step} isOpen=${isOpen(step)} isCurrent=${step.number === current}
        findings=${findings.get(step.number)} onToggle=${onToggle} body=${body} onResize=${again} />`,
    )}
    <div style=${{ height: `${offsets[steps.length] - offsets[last]}px` }}></div>
  </div>`;
}

/** The number of the last turn that begins before a place. */
function before(offsets, place) {
  let [low, high] = [0, offsets.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return Math.min(low, Math.max(0, offsets.length - 2));
}

function measure(list, heights, again) {
  let isNew = false;
  for (const each of list?.querySelectorAll(":scope > [data-turn]") ?? []) {
    const name = `${each.dataset.turn}${each.dataset.open === "true" ? "o" : "f"}`;
    const tall = each.offsetHeight;
    if (tall && Math.abs((heights.get(name) ?? 0) - tall) > 0.5) {
      heights.set(name, tall);
      isNew = true;
    }
  }
  if (isNew) requestAnimationFrame(again);
}

/** Brings what is wanted to the top, again while heights of others become known. */
function settle(main, list, target, steps, offsets, again) {
  const wanted = target.current;
  if (!wanted || !main || !list) return;
  const at = steps.findIndex((each) => each.number === wanted.number);
  if (at < 0) return;
  const bar = document.querySelector(".turn-bar")?.offsetHeight ?? 0;
  const turn = list.querySelector(`:scope > [data-turn="${wanted.number}"]`);
  const drawn = (wanted.item && turn?.querySelector(`[data-item="${wanted.item}"]`)) || turn;
  const top = list.getBoundingClientRect().top - main.getBoundingClientRect().top + main.scrollTop;
  const place = drawn ? drawn.getBoundingClientRect().top - main.getBoundingClientRect().top + main.scrollTop : top + offsets[at];
  const goal = Math.max(0, Math.min(place - bar - 4, main.scrollHeight - main.clientHeight));
  wanted.tries -= 1;
  if (Math.abs(main.scrollTop - goal) > 1) main.scrollTop = goal;
  if (wanted.tries <= 0) target.current = null;
  else requestAnimationFrame(again);
}

function Turn({ step, isOpen, isCurrent, findings, onToggle, body, onResize }) {
  const place = useRef(null);
  useEffect(() => {
    const measured = new ResizeObserver(() => onResize());
    measured.observe(place.current);
    return () => measured.disconnect();
  }, []);
  const isError = step.tools.some((tool) => tool.is_error);
  return html`<section class=${`turn${isCurrent ? " current" : ""}${isError ? " failing" : ""}`} data-turn=${step.number} data-open=${isOpen} ref=${place}>
    <button class="turn-head" aria-expanded=${isOpen} onClick=${() => onToggle(step)}>
      <span class="turn-number">${number(step.number)}</span>
      <span class="turn-what">${whatOf(step)}</span>
      ${findings && html`<span class="turn-found">${[...new Set(findings.map((each) => each.scanner.replaceAll("_", " ")))].join(", ")}</span>`}
      ${step.tools.length > 0 && html`<span class=${`turn-state ${isError ? "bad" : "good"}`}>${isError ? "error" : step.tools.every((tool) => tool.has_output) ? "ok" : "no output"}</span>`}
      <span class="turn-figures">${figuresOf(step)}</span>
    </button>
    ${isOpen && html`<div class="turn-body">
      ${findings?.map((each) => html`<p class="finding"><b>${each.scanner.replaceAll("_", " ")}</b>: ${visible(each.says)}</p>`)}
      ${body(step)}
    </div>`}
  </section>`;
}

function whatOf(step) {
  const [tool] = step.tools;
  if (!tool) return step.says ? html`<span>${visible(step.says)}</span>` : html`<em>${step.reasons ? "reasoning only" : "nothing"}</em>`;
  const more = step.tools.length > 1 ? ` and ${count(step.tools.length - 1, "more call")}` : "";
  return html`<b>${visible(tool.name)}</b> <code>${visible(tool.argument)}</code>${more}`;
}

function figuresOf(step) {
  const spent = step.model_s === undefined && step.tool_s === undefined ? null : (step.model_s ?? 0) + (step.tool_s ?? 0);
  const tokens = step.output === undefined ? null : `${number(step.output)} tok`;
  const cost = step.cost_usd ? dollars(step.cost_usd) : null;
  return [spent !== null && seconds(spent), tokens, cost, step.chain > 0 && `track ${step.chain}`, step.by && step.by !== "policy" && step.by].filter(Boolean).join(" · ");
}

/** The items of an open turn, and what can be copied of it. */
export function TurnBody({ step, found, hidden, showTokens, linkTo, commandOf, rollout, call }) {
  if (found.error) return html`<p class="error" role="alert">${found.error}</p>`;
  if (!found.items) return html`<p class="note loading">Loading…</p>`;
  return html`<p class="turn-tools">
      <${Copy} name="copy the text" text=${() => textOfItems(found.items)} />
      <${Copy} name="copy as JSON" text=${() => JSON.stringify(found.items, null, 2)} />
      <${Copy} name="copy a link" text=${() => linkTo(step.number)} />
      ${commandOf && html`<${Copy} name="copy the request as curl" text=${() => commandOf("curl", step.number)} />`}
      ${commandOf && html`<${Copy} name="copy the commands that continue from here" text=${() => commandOf("again", step.number)} />`}
      ${commandOf && html`<button class="copy" aria-expanded=${call.turn === step.number} onClick=${() => call.toggle(step.number)}>raw call (c)</button>`}
    </p>
    ${commandOf && call.turn === step.number && html`<${RawCall} rollout=${rollout} turn=${step.number} />`}
    <${Items} items=${found.items} hidden=${hidden} showTokens=${showTokens} linkTo=${(nth) => linkTo(`${step.number}.${nth}`)} />`;
}

/** What the model was asked in a turn, and what it replied, as JSON. */
function RawCall({ rollout, turn }) {
  const { found, error } = useAnswer("/api/call", { id: rollout.id, turn }, rollout);
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!found) return html`<p class="note">Loading…</p>`;
  const json = (value) => html`<${Text} text=${JSON.stringify(value, null, 2)} plain=${true} />`;
  return html`<section class="raw-call" aria-label=${`raw call of turn ${turn}`}>
    <p class="note">${found.source ? `Recorded in ${found.source}.` : "Rebuilt from the line: no recording of this call was found."}
      ${found.notes.map((each) => ` ${each}`)}${found.left_out > 0 && ` ${count(found.left_out, "earlier item")} of the output left out: the request as curl has all.`}</p>
    <h3>Request</h3>${json(found.request)}
    <h3>Response</h3>${json(found.response)}
    ${Object.keys(found.figures).length > 0 && html`<h3>Tokens</h3>${json(found.figures)}`}
  </section>`;
}

function textOfItems(items) {
  return items
    .map((item) => [item.role ?? item.name ?? item.type, item.arguments ?? item.input ?? textOf(item.content ?? item.output ?? item.summary)].filter(Boolean).join(": "))
    .join("\n\n");
}

/** Turns one after the other that call the same tool, together. */
export function Outline({ steps, findings, current, onGo }) {
  const parts = [];
  for (const step of steps) {
    const name = step.tools[0]?.name ?? (step.says ? "message" : "reasoning");
    const isError = step.tools.some((tool) => tool.is_error);
    const last = parts.at(-1);
    if (last && last.name === name && !findings.has(step.number) && !last.isFound && last.isError === isError) last.end = step.number;
    else parts.push({ name, begin: step.number, end: step.number, isError, isFound: findings.has(step.number) });
  }
  const shown = parts.slice(0, 400);
  return html`<nav class="outline" aria-label="outline of the turns" tabindex="0">
    ${shown.map(
      (part) => html`<button aria-current=${current >= part.begin && current <= part.end ? "true" : undefined} class=${part.isError ? "failing" : part.isFound ? "found" : ""} onClick=${() => onGo(part.begin)}>
        <span class="turn-number">${part.begin === part.end ? part.begin : `${part.begin}–${part.end}`}</span> ${visible(part.name)}${part.isError ? " ✗" : ""}${part.isFound && !part.isError ? " !" : ""}</button>`,
    )}
    ${parts.length > shown.length && html`<p class="note">${count(parts.length - shown.length, "more part")}: go to a turn with g</p>`}
  </nav>`;
}
