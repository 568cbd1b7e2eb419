// Texts of a model: shown as text, the beginning and the end of long ones, the middle on demand.

import { createContext, html, useContext, useEffect, useState } from "./vendor/preact-htm.js";
import { get, isReport } from "./api.js";
import { number } from "./format.js";

const SHOWN_CHARS = 8000;
const SLICE = 500_000;

/** What is looked for in the rollout, and whether texts are shown as they stand. */
export const Reading = createContext({ found: "", isRaw: false, isPrinting: false });

/** Texts that the server has cut, with the place of the whole text. */
const cuts = new Map();

/** Notes which texts of an answer are cut, and returns the answer. */
export function noteCuts(id, line, found) {
  for (const cut of found ?? []) {
    const text = cut.path.reduce((value, name) => value?.[name], line);
    if (typeof text === "string") cuts.set(text, { ...cut, id });
  }
  return line;
}

const UNSEEN = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g;

/** A text with the signs that turn its direction made visible. */
export function visible(text) {
  return text.replace(UNSEEN, (sign) => `⟦U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`);
}

/** A long text, its middle folded. `show` draws a piece of it. */
export function Text({ text, plain, show }) {
  const { found, isPrinting } = useContext(Reading);
  const [isWhole, setWhole] = useState(false);
  const cut = cuts.get(text);
  const [middle, setMiddle] = useState("");
  const [error, setError] = useState("");
  const draw = show ?? visible;
  const missing = cut ? cut.length - cut.head - cut.tail - middle.length : 0;
  const wanted = found.toLowerCase();
  const load = async () => {
    try {
      const asked = { id: cut.id, path: JSON.stringify(cut.path), start: cut.head + middle.length, count: Math.min(SLICE, missing) };
      const { text: more } = await get("/api/text", asked);
      setMiddle(middle + more);
    } catch (problem) {
      setError(problem.message);
    }
  };
  const hides = (part) => wanted && part.toLowerCase().includes(wanted);
  const isLong = text.length > SHOWN_CHARS;
  const isFolded = isLong && !isWhole && !isPrinting && !middle && !hides(text.slice(SHOWN_CHARS / 2, -SHOWN_CHARS / 2));
  useEffect(() => {
    if (cut && missing > 0 && wanted && !hides(text) && !hides(middle) && !isReport) load();
  }, [wanted, middle]);
  const half = SHOWN_CHARS / 2;
  const [before, behind] = isFolded ? [text.slice(0, half), text.slice(-half)] : cut ? [text.slice(0, cut.head) + middle, text.slice(-cut.tail)] : [text, ""];
  const folded = text.length - SHOWN_CHARS + (cut ? cut.length - cut.head - cut.tail : 0);
  return html`<div class=${plain ? "text plain" : "text"} tabindex="0">${draw(before)}${
    isFolded
      ? html`<button class="more" onClick=${() => setWhole(true)}>… show ${number(folded)} more characters in the middle …</button>`
      : missing > 0 &&
        (isReport
          ? html`<em class="note">… ${number(missing)} more characters are in the file …</em>`
          : html`<button class="more" onClick=${load}>… show ${number(Math.min(SLICE, missing))} of ${number(missing)} more characters in the middle …</button>`)
  }${error && html`<span class="error" role="alert">${error}</span>`}${behind && draw(behind)}${
    isLong && isWhole && html`<button class="more" onClick=${() => setWhole(false)}>show less</button>`
  }</div>`;
}

export function pretty(text) {
  if (typeof text !== "string") return JSON.stringify(text, null, 2) ?? "";
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** A button that copies a text. */
export function Copy({ text, name }) {
  const [said, setSaid] = useState("");
  const copy = async (event) => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(await (typeof text === "function" ? text() : text));
      setSaid("copied");
    } catch (problem) {
      setSaid(`not copied: ${problem.message}`);
    }
    setTimeout(() => setSaid(""), 1500);
  };
  return html`<button class="copy" onClick=${copy}>${said || name}</button>`;
}
