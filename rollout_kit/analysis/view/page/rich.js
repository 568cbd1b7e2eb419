// Markdown, formulas, code, diffs, JSON and colours of a terminal. Whatever a library makes of a text of a
// model is cleaned before it is shown: no script, style, form, frame or picture from elsewhere is left.

import { html, useContext, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { Reading, Text, visible } from "./texts.js";

const MAX_RICH = 60_000;
const MAX_CODE = 40_000;
const MAX_FORMULA = 1000;
const MAX_FORMULAS = 200;
const MAX_SPANS = 3000;

const ALLOWED = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "em", "strong", "s", "blockquote", "ul", "ol", "li", "pre", "code", "span", "a"],
    ...["table", "thead", "tbody", "tr", "th", "td", "math", "semantics", "mrow", "mi", "mo", "mn", "ms", "mtext", "mspace", "msup", "msub"],
    ...["msubsup", "mfrac", "msqrt", "mroot", "mover", "munder", "munderover", "mtable", "mtr", "mtd", "mstyle", "mpadded", "mphantom", "menclose"],
  ],
  ALLOWED_ATTR: ["class", "href", "start", "display", "mathvariant", "accent", "stretchy", "fence", "separator", "columnalign", "title"],
  ALLOWED_URI_REGEXP: /^https?:\/\//i,
  RETURN_DOM_FRAGMENT: true,
};

let counted = 0;

function formula(source, isBlock) {
  counted += 1;
  if (source.length > MAX_FORMULA || counted > MAX_FORMULAS || !globalThis.katex) return null;
  try {
    return globalThis.katex.renderToString(source, {
      ...{ output: "mathml", displayMode: isBlock, throwOnError: true, trust: false, strict: "ignore", maxExpand: 100, maxSize: 20 },
    });
  } catch {
    return null; // it stays as it was written
  }
}

/** Adds formulas to the Markdown parser: $…$, $$…$$, \(…\) and \[…\]. */
function withFormulas(parser) {
  const rule = (state, silent) => {
    if (state.src[state.pos] !== "$" && state.src[state.pos] !== "\\") return false;
    const rest = state.src.slice(state.pos, state.pos + MAX_FORMULA + 4);
    const match = /^(?:\$\$([^$]+)\$\$|\$(?![\s$])([^$\n]*[^\s$\\])\$(?!\d)|\\\(([\s\S]+?)\\\)|\\\[([\s\S]+?)\\\])/.exec(rest);
    if (!match) return false;
    const isBlock = match[1] !== undefined || match[4] !== undefined;
    if (!silent) {
      const token = state.push("formula", "", 0);
      token.content = match[1] ?? match[2] ?? match[3] ?? match[4];
      token.markup = match[0];
      token.meta = { isBlock };
    }
    state.pos += match[0].length;
    return true;
  };
  parser.inline.ruler.before("escape", "formula", rule);
  parser.renderer.rules.formula = (tokens, at) =>
    formula(tokens[at].content, tokens[at].meta.isBlock) ?? parser.utils.escapeHtml(tokens[at].markup);
  return parser;
}

let made = null;

function parser() {
  if (!made && globalThis.markdownit) {
    made = withFormulas(globalThis.markdownit({ html: false, linkify: false, maxNesting: 20, highlight: (code, name) => highlighted(code, name) ?? "" }));
    made.disable("image");
  }
  return made;
}

/** Code in colours, as HTML; null if its language is not known or it is long. */
function highlighted(code, name) {
  const { hljs } = globalThis;
  if (!hljs || code.length > MAX_CODE || !name || !hljs.getLanguage(name)) return null;
  try {
    return hljs.highlight(code, { language: name, ignoreIllegals: true }).value;
  } catch {
    return null;
  }
}

/** Puts HTML of a library into an element, after it was cleaned. */
function Cleaned({ source, className }) {
  const place = useRef(null);
  useEffect(() => {
    const clean = globalThis.DOMPurify.sanitize(source, ALLOWED);
    for (const link of clean.querySelectorAll("a")) {
      link.setAttribute("rel", "noopener noreferrer");
      link.setAttribute("target", "_blank");
      link.title = link.href;
    }
    place.current.replaceChildren(clean);
  }, [source]);
  return html`<div class=${className} ref=${place} tabindex="0"></div>`;
}

const SIGNS = /[#*_`$|\\]|\]\(|^ {0,3}[-+\d]{1,9}[.)]? /m;

/** What a message says, as Markdown. */
export function Markdown({ text }) {
  const { isRaw, found } = useContext(Reading);
  const isRich = !isRaw && text.length <= MAX_RICH && SIGNS.test(text) && globalThis.DOMPurify && parser();
  const source = useMemo(() => {
    if (!isRich) return "";
    counted = 0;
    try {
      return parser().render(visible(text));
    } catch {
      return "";
    }
  }, [text, isRich]);
  return source && !(found && !text.toLowerCase().includes(found.toLowerCase()))
    ? html`<${Cleaned} source=${source} className="text rich" />`
    : html`<${Text} text=${text} />`;
}

/** Code of a language. */
export function Code({ text, language }) {
  const { isRaw } = useContext(Reading);
  const source = useMemo(() => (isRaw || !globalThis.DOMPurify ? null : highlighted(visible(text), language)), [text, language, isRaw]);
  return source ? html`<${Cleaned} source=${source} className="text code" />` : html`<${Text} text=${text} />`;
}

const LANGUAGES = {
  ...{ py: "python", js: "javascript", mjs: "javascript", ts: "typescript", sh: "bash", bash: "bash", json: "json", html: "xml", xml: "xml" },
  ...{ css: "css", c: "c", h: "c", cc: "cpp", cpp: "cpp", rs: "rust", go: "go", java: "java", rb: "ruby", sql: "sql", yaml: "yaml", yml: "yaml" },
  ...{ toml: "ini", ini: "ini", md: "markdown", php: "php", kt: "kotlin", swift: "swift", r: "r", lua: "lua" },
};

/** The language of a file, by its name. */
export function languageOf(path) {
  return LANGUAGES[/\.(\w+)$/.exec(path ?? "")?.[1]?.toLowerCase()];
}

const DIFF = /^(?:diff --git |--- [^\n]*\n\+\+\+ |@@ -\d|\*\*\* (?:Begin Patch|Update File))/m;

/** Whether a text is a patch. */
export function isDiff(text) {
  return DIFF.test(text.slice(0, 5000));
}

/** The lines of a patch, what was added and what was removed in colours. */
function drawDiff(text) {
  return text.split("\n").map((line) => {
    const kind = /^(?:\+\+\+|---|diff |index |\*\*\* )/.test(line) ? "diff-file" : line.startsWith("@@") ? "diff-place" : line.startsWith("+") ? "diff-added" : line.startsWith("-") ? "diff-removed" : "";
    return html`<span class=${kind}>${visible(line)}${"\n"}</span>`;
  });
}

// An escape sequence of a terminal. Only colours and weight are shown; all others are left out.
const ESCAPE = /\u001b(?:\[([0-9;:?]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;

/** A text with the colours of a terminal. */
function drawTerminal(text) {
  const parts = [];
  let style = {};
  let last = 0;
  const add = (piece) => {
    const names = [style.bold && "ansi-bold", style.dim && "ansi-dim", style.under && "ansi-under", style.colour !== undefined && `ansi-${style.colour}`];
    const shown = visible(piece.includes("\r") ? overwritten(piece) : piece);
    if (shown) parts.push(names.some(Boolean) ? html`<span class=${names.filter(Boolean).join(" ")}>${shown}</span>` : shown);
  };
  for (const match of text.matchAll(ESCAPE)) {
    if (parts.length > MAX_SPANS) break;
    add(text.slice(last, match.index));
    last = match.index + match[0].length;
    if (match[2] === "m") style = restyled(style, match[1]);
  }
  add(text.slice(last).replace(ESCAPE, ""));
  return parts;
}

/** The lines of a text as a terminal leaves them: what stands before a carriage return is written over. */
function overwritten(text) {
  return text
    .split("\n")
    .map((line) => {
      const kept = line.endsWith("\r") ? line.slice(0, -1) : line;
      return kept.slice(kept.lastIndexOf("\r") + 1);
    })
    .join("\n");
}

function restyled(style, codes) {
  const next = { ...style };
  const list = (codes || "0").split(/[;:]/).slice(0, 16).map(Number);
  for (let at = 0; at < list.length; at += 1) {
    const code = list[at];
    if (code === 0) for (const name of Object.keys(next)) delete next[name];
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 4) next.under = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 24) next.under = false;
    else if (code >= 30 && code <= 37) next.colour = code - 30;
    else if (code >= 90 && code <= 97) next.colour = code - 90;
    else if (code === 39) delete next.colour;
    else if (code === 38 || code === 48) {
      if (list[at + 1] === 5 && list[at + 2] < 16 && code === 38) next.colour = list[at + 2] % 8;
      at += list[at + 1] === 2 ? 4 : 2;
    }
  }
  return next;
}

function parse(text) {
  const start = text.trimStart()[0];
  if ((start !== "{" && start !== "[") || text.length > 1_000_000) return undefined;
  try {
    const found = JSON.parse(text);
    return found && typeof found === "object" ? found : undefined;
  } catch {
    return undefined;
  }
}

/** What a tool returned: a tree of JSON, a patch, or the text of a terminal. */
export function Returned({ text }) {
  const { isRaw, found } = useContext(Reading);
  const tree = useMemo(() => (isRaw ? undefined : parse(text)), [text, isRaw]);
  if (isRaw) return html`<${Text} text=${text} />`;
  if (tree !== undefined) return html`<div class="text tree" tabindex="0"><${Tree} value=${tree} isOpen=${true} isAllOpen=${Boolean(found)} /></div>`;
  if (isDiff(text)) return html`<${Text} text=${text} show=${drawDiff} />`;
  if (text.includes("\u001b") || text.includes("\r")) return html`<${Text} text=${text} show=${drawTerminal} />`;
  return html`<${Text} text=${text} />`;
}

const MAX_MEMBERS = 200;

/** A value of JSON; its texts have real line breaks. */
export function Tree({ name, value, isOpen, isAllOpen, level = 0 }) {
  const [isShown, setShown] = useState(Boolean(isOpen) || level < 2);
  const [most, setMost] = useState(MAX_MEMBERS);
  const label = name === undefined ? null : html`<span class="tree-name">${visible(String(name))}: </span>`;
  if (value === null || typeof value !== "object") {
    return html`<div>${label}<span class=${`tree-${value === null ? "null" : typeof value}`}>${typeof value === "string" ? (value.length > 8000 ? html`<${Text} text=${value} />` : visible(value)) : String(value)}</span></div>`;
  }
  const entries = Object.entries(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return html`<div>${label}${open}${close}</div>`;
  const show = isShown || isAllOpen;
  return html`<div>
    <button class="fold" aria-expanded=${show} aria-label=${`${show ? "fold" : "open"} ${name ?? "the value"}`} onClick=${() => setShown(!isShown)}>${show ? "▾" : "▸"}</button>${label}${show ? "" : `${open}${entries.length}${close}`}
    ${show &&
    html`<div class="tree-inside">
      ${entries.slice(0, most).map(([key, each]) => html`<${Tree} name=${key} value=${each} isAllOpen=${isAllOpen} level=${level + 1} />`)}
      ${entries.length > most && html`<button class="more" onClick=${() => setMost(most + 10 * MAX_MEMBERS)}>show ${entries.length - most} more</button>`}
    </div>`}
  </div>`;
}

const SHELL = /^(?:command|cmd|commands|script)$/;
const PROGRAM = /^(?:code|source|program|content|file_text|new_str|old_str|new_string|old_string|text|body)$/;

/** Arguments that hold a text and what replaces it. */
const EDITS = [["old_str", "new_str"], ["old_string", "new_string"], ["old", "new"]];

/** The command in the words that start a program: the script of `bash -lc`, else the words in a line. */
function commandOf(words) {
  return words.length > 2 && /(?:^|\/)(?:ba|da|z)?sh$/.test(words[0]) && /^-\w*c$/.test(words.at(-2)) ? words.at(-1) : words.join(" ");
}

/** What a call asks for: each argument with its own line breaks, commands and code in colours. */
export function Asked({ text, tool }) {
  const { isRaw } = useContext(Reading);
  const whole = typeof text === "string" ? text : (JSON.stringify(text) ?? "");
  const found = useMemo(() => (isRaw ? undefined : typeof text === "string" ? parse(text) : text), [whole, isRaw]);
  if (isRaw || found === undefined || found === null || Array.isArray(found) || typeof found !== "object") {
    const language = /python|code_interp/.test(tool ?? "") ? "python" : /bash|shell|terminal|^exec$/.test(tool ?? "") ? "bash" : undefined;
    return isDiff(whole) && !isRaw ? html`<${Returned} text=${whole} />` : html`<${Code} text=${whole} language=${language} />`;
  }
  const entries = Object.entries(found);
  if (!entries.length) return html`<${Text} text=${whole} />`;
  const path = entries.map(([, each]) => each).find((each) => languageOf(typeof each === "string" && each.length < 300 ? each : ""));
  const edits = EDITS.find((names) => names.every((name) => typeof found[name] === "string"));
  return html`<div class="arguments">
    ${entries
      .filter(([name]) => !edits?.includes(name))
      .map(([name, each]) => html`<div><span class="tree-name">${visible(name)}</span> ${argument(name, each, languageOf(path), tool)}</div>`)}
    ${edits && html`<${Change} before=${found[edits[0]]} after=${found[edits[1]]} />`}
  </div>`;
}

function argument(name, value, language, tool) {
  if (SHELL.test(name) && Array.isArray(value) && value.length && value.every((each) => typeof each === "string")) {
    return html`<${Code} text=${name === "commands" ? value.join("\n") : commandOf(value)} language="bash" />`;
  }
  if (typeof value !== "string") return value && typeof value === "object" ? html`<div class="text tree" tabindex="0"><${Tree} value=${value} isOpen=${true} /></div>` : html`<code>${String(value)}</code>`;
  if (isDiff(value)) return html`<${Returned} text=${value} />`;
  if (SHELL.test(name)) return html`<${Code} text=${value} language=${/python/.test(tool ?? "") ? "python" : "bash"} />`;
  if (PROGRAM.test(name)) return html`<${Code} text=${value} language=${language ?? (name === "code" ? "python" : undefined)} />`;
  return value.includes("\n") || value.length > 80 ? html`<${Text} text=${value} />` : html`<code>${visible(value)}</code>`;
}

/** A text that another one replaces, as a diff of lines. */
function Change({ before, after }) {
  const parts = useMemo(() => (before.length + after.length > 50_000 ? null : globalThis.Diff.diffLines(before, after)), [before, after]);
  const shown = parts ?? [{ value: before, removed: true }, { value: after, added: true }];
  return html`<div class="text code" tabindex="0">${shown.map((part) => {
    const sign = part.added ? "+" : part.removed ? "-" : " ";
    const lines = part.value.replace(/\n$/, "").split("\n");
    return html`<span class=${part.added ? "diff-added" : part.removed ? "diff-removed" : ""}>${lines.map((line) => visible(`${sign} ${line}\n`))}</span>`;
  })}</div>`;
}
