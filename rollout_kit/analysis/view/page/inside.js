// A search inside a rollout: how often a text stands in it, where, and marks in what is in sight.

import { html, useEffect } from "./vendor/preact-htm.js";
import { number } from "./format.js";

const MAX_MARKS = 3000;

/** Marks a text in an element. The browser draws the marks; the page is not changed. */
export function mark(root, text) {
  if (!globalThis.CSS?.highlights) return [];
  const ranges = [];
  const wanted = text.toLowerCase();
  if (wanted && root) {
    for (const block of root.querySelectorAll(".text, .arguments > div > code, .turn-what, dd")) {
      if (block.parentElement.closest(".text")) continue;
      rangesIn(block, wanted, ranges);
      if (ranges.length >= MAX_MARKS) break;
    }
  }
  if (ranges.length) globalThis.CSS.highlights.set("found", new globalThis.Highlight(...ranges));
  else globalThis.CSS.highlights.delete("found");
  return ranges;
}

function rangesIn(block, wanted, ranges) {
  const nodes = [];
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
  let whole = "";
  while (walker.nextNode()) {
    nodes.push([whole.length, walker.currentNode]);
    whole += walker.currentNode.data;
  }
  const low = whole.toLowerCase();
  if (low.length !== whole.length) return; // a letter has another length in small
  const placeOf = (offset) => {
    let at = nodes.length - 1;
    while (nodes[at][0] > offset) at -= 1;
    return [nodes[at][1], offset - nodes[at][0]];
  };
  for (let at = low.indexOf(wanted); at >= 0 && ranges.length < MAX_MARKS; at = low.indexOf(wanted, at + wanted.length)) {
    const range = new Range();
    range.setStart(...placeOf(at));
    const [node, offset] = placeOf(at + wanted.length - 1);
    range.setEnd(node, offset + 1);
    ranges.push(range);
  }
}

/** Keeps the marks on what is in sight, and brings the nth in a turn into sight when `wanted` asks for it. */
export function useMarks(root, text, wanted) {
  useEffect(() => {
    let asked = 0;
    let isSought = Boolean(wanted);
    let tries = 30;
    const draw = () => {
      const ranges = mark(root.current, text);
      if (!isSought || !wanted) return;
      const own = ranges.filter((range) => {
        const turn = range.startContainer.parentElement?.closest("[data-turn]");
        return wanted.turn > 0 ? turn?.dataset.turn === String(wanted.turn) && range.startContainer.parentElement.closest(".turn-body") : !turn;
      });
      const range = own[Math.min(wanted.nth, own.length - 1)];
      tries -= 1;
      if (range) {
        let element = range.startContainer.parentElement;
        const box = range.getBoundingClientRect();
        while (element && element !== root.current) {
          if (element.scrollHeight > element.clientHeight + 4 && getComputedStyle(element).overflowY !== "visible") {
            element.scrollTop += box.top - element.getBoundingClientRect().top - element.clientHeight / 3;
          }
          element = element.parentElement;
        }
        const now = range.getBoundingClientRect();
        root.current.scrollTop += now.top - root.current.getBoundingClientRect().top - root.current.clientHeight / 3;
        if (tries < 20) isSought = false;
      }
      if (isSought && tries > 0) asked = requestAnimationFrame(draw);
    };
    const later = () => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(draw);
    };
    const watched = new MutationObserver(later);
    if (root.current && text) watched.observe(root.current, { childList: true, subtree: true, characterData: true });
    later();
    return () => {
      cancelAnimationFrame(asked);
      watched.disconnect();
      mark(null, "");
    };
  }, [text, wanted]);
}

/** The field of the search, and where the reader is among what was found. */
export function Inside({ text, found, at, error, onSearch, onStep }) {
  const submit = (event) => {
    event.preventDefault();
    const wanted = new FormData(event.target).get("inside");
    if (wanted === text && found?.total) onStep(1);
    else onSearch(wanted);
  };
  return html`<form class="inside" onSubmit=${submit} role="search">
    <input name="inside" key=${text} defaultValue=${text} placeholder="search inside (/)" aria-label="search inside the rollout" spellcheck=${false} autocomplete="off" />
    ${text &&
    html`<span role="status">${error || (!found ? "searching…" : found.total ? `${number(Math.min(at + 1, found.total))} of ${number(found.total)}` : "not found")}</span>
      <button type="button" disabled=${!found?.total} aria-label="previous place" onClick=${() => onStep(-1)}>↑</button>
      <button type="button" disabled=${!found?.total} aria-label="next place" onClick=${() => onStep(1)}>↓</button>
      <button type="button" aria-label="end the search" onClick=${() => onSearch("")}>×</button>`}
  </form>`;
}
