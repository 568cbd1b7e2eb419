// The verdict: the reward, failed tests first, what a judge says with quotes that lead to their place.

import { html, useContext, useState } from "./vendor/preact-htm.js";
import { count, number, rewardClass } from "./format.js";
import { isDiff, Returned, Tree } from "./rich.js";
import { Reading, Text, visible } from "./texts.js";

const SHORT = 60;
const OF_VERDICTS = /judge|criteri|rubric|verdict|explanation|feedback|test_result|tests$|report/;

/** Fields of a task that say what is right. */
const TARGETS = ["expected_answer", "ground_truth", "target", "answer"];

/** The fields of a line that the verification wrote, as far as its names say so. */
export function verdictOf(line) {
  const names = new Set(line.rollout?.scores ?? []);
  for (const name of Object.keys(line)) if (OF_VERDICTS.test(name)) names.add(name);
  const known = [...names].filter((name) => line[name] !== undefined && line[name] !== null && name !== "reward");
  return { known, isShort: (name) => isShort(line[name]) };
}

function isShort(value) {
  return typeof value !== "object" && String(value).length <= SHORT && !String(value).includes("\n");
}

export function Verdict({ rollout }) {
  const { line, status } = rollout;
  const { known } = verdictOf(line);
  const targets = TARGETS.filter((name) => !known.includes(name) && line[name] !== undefined && line[name] !== null);
  return html`<div class="verdict">
    <span class=${status === "verified" ? `reward ${rewardClass(line.reward)}` : `status ${status}`}>
      ${status === "verified" ? `reward ${number(line.reward)}` : status}
    </span>
    ${rollout.group && html`<span class="reward none">group reward ${number(rollout.group.reward)}</span>`}
    <dl>
      ${Object.entries(rollout.group?.components ?? {}).map(([name, value]) => html`<div><dt>group: ${name}</dt><dd>${JSON.stringify(value)}</dd></div>`)}
      ${[...known, ...targets].filter((name) => isShort(line[name]) && line[name] !== "").map((name) => html`<div><dt>${name}</dt><dd>${visible(String(line[name]))}</dd></div>`)}
    </dl>
  </div>`;
}

/** What the verification says at length. */
export function Explanation({ line, findings, onQuote }) {
  const { known } = verdictOf(line);
  const holdsTests = (name) => Number(Boolean(testsOf(line[name])));
  const long = known.filter((name) => !isShort(line[name])).sort((one, other) => holdsTests(other) - holdsTests(one));
  const missing = findings.filter((each) => each.scanner === "misquote");
  if (!long.length && !missing.length) return null;
  return html`<section class="explanation" aria-label="verdict">
    <h2>Verdict</h2>
    ${missing.map((each) => html`<p class="finding"><b>misquote</b>: ${visible(each.says)}</p>`)}
    ${long.map((name) => html`<h3>${name}</h3><${Said} value=${line[name]} onQuote=${onQuote} />`)}
  </section>`;
}

const PASSED = /^(?:pass|passed|ok|success|succeeded|true|met|yes|xfail|xfailed)$/i;
const FAILED = /^(?:fail|failed|error|errored|false|timeout|crashed|no|not met|missing)$/i;

function stateOf(value) {
  const given = value && typeof value === "object" ? (value.passed ?? value.met ?? value.ok ?? value.status ?? value.outcome ?? value.result) : value;
  if (typeof given === "boolean") return given;
  if (typeof given === "string") return PASSED.test(given) ? true : FAILED.test(given) ? false : undefined;
  return undefined;
}

const SUMMARY = /^(PASSED|FAILED|ERROR|XFAIL) (\S+(?:::|\.py\b).*?)(?: - (.*))?$/gm;
const MAX_SUMMARY = 200_000;

/** What the summary of `pytest -rA` says of each test. */
function testsIn(text) {
  return text.length > MAX_SUMMARY ? [] : [...text.matchAll(SUMMARY)].map(([, status, name, says]) => [name, { status, says: says ?? "" }]);
}

/** Results of tests in a value: [name, passed, details], the failed ones first; null if it holds none. */
function testsOf(value) {
  const entries = typeof value === "string" ? testsIn(value) : Array.isArray(value)
    ? value.map((each) => [each?.name ?? each?.test ?? each?.nodeid ?? each?.id, each])
    : Object.entries(value);
  if (!entries.length || entries.some(([name, each]) => typeof name !== "string" || stateOf(each) === undefined)) return null;
  return entries.map(([name, each]) => [name, stateOf(each), each]).sort((one, other) => Number(one[1]) - Number(other[1]));
}

const CRITERION = ["criterion", "criteria", "rubric", "requirement", "description", "name", "title"];

/** Whether a text is a patch from its beginning, and no words about one. */
function isPatch(text) {
  return /^\s*(?:diff |--- |\*\*\* )/.test(text) && isDiff(text);
}

const MAX_FIELDS = 30, MAX_DEPTH = 4;

function Said({ value, onQuote, depth = 0 }) {
  const { found, isPrinting } = useContext(Reading);
  const tests = testsOf(value);
  const drawn = tests && html`<${Tests} tests=${tests} onQuote=${onQuote} />`;
  if (typeof value === "string") {
    if (isPatch(value)) return html`<${Returned} text=${value} />`;
    const text = html`<${Quoting} text=${value} onQuote=${onQuote} />`;
    return drawn ? html`${drawn}<details open=${isPrinting || Boolean(found)}><summary>all that was written</summary>${text}</details>` : text;
  }
  if (drawn) return drawn;
  if (Array.isArray(value) && value.every((each) => each && typeof each === "object" && CRITERION.some((name) => each[name] !== undefined))) {
    return html`<ol class="criteria">${value.map((each) => html`<li><${Criterion} value=${each} onQuote=${onQuote} /></li>`)}</ol>`;
  }
  const fields = Array.isArray(value) || depth > MAX_DEPTH ? [] : Object.entries(value);
  if (fields.length && fields.length <= MAX_FIELDS) {
    return html`<dl class="said">${fields.map(
      ([name, each]) => html`<div><dt>${visible(name)}</dt><dd>${each === null || isShort(each) ? visible(String(each)) : html`<${Said} value=${each} onQuote=${onQuote} depth=${depth + 1} />`}</dd></div>`,
    )}</dl>`;
  }
  return html`<div class="text tree" tabindex="0"><${Tree} value=${value} isOpen=${true} /></div>`;
}

function Tests({ tests, onQuote }) {
  const failed = tests.filter(([, passed]) => !passed).length;
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? tests : tests.slice(0, Math.max(20, Math.min(failed, 200)));
  return html`<p>${failed ? html`<span class="status failed">${count(failed, "test")} failed</span>` : ""} ${number(tests.length - failed)} of ${number(tests.length)} passed</p>
    <ul class="tests">
      ${shown.map(
        ([name, passed, details]) => html`<li><span class=${`status ${passed ? "verified" : "failed"}`}>${passed ? "passed" : "failed"}</span> <code>${visible(name)}</code>
          ${details && typeof details === "object" && html`<${Details} value=${details} onQuote=${onQuote} />`}</li>`,
      )}
    </ul>
    ${shown.length < tests.length && html`<button class="more" onClick=${() => setWhole(true)}>show ${number(tests.length - shown.length)} more</button>`}`;
}

const STATES = new Set(["passed", "met", "ok", "status", "outcome", "result", "name", "test", "nodeid", "id", "score"]);

function Details({ value, onQuote, without = [] }) {
  const rest = Object.entries(value).filter(([name, each]) => !STATES.has(name) && !without.includes(name) && each !== null && each !== "");
  return rest.map(([name, each]) =>
    /^(?:quotes?|evidence)$/.test(name)
      ? [each].flat().map((quote) => html`<${Quote} text=${String(quote)} onQuote=${onQuote} />`)
      : typeof each === "string"
        ? html`<${Quoting} text=${each} onQuote=${onQuote} />`
        : html`<div class="text tree" tabindex="0"><${Tree} name=${name} value=${each} /></div>`,
  );
}

function Criterion({ value, onQuote }) {
  const name = CRITERION.find((each) => value[each] !== undefined);
  const state = stateOf(value);
  const score = value.score ?? value.points;
  return html`${state !== undefined && html`<span class=${`status ${state ? "verified" : "failed"}`}>${state ? "met" : "not met"}</span> `}
    ${score !== undefined && html`<span class=${`reward ${rewardClass(score)}`}>${number(score)}</span> `}
    <b>${visible(String(value[name]))}</b>
    <${Details} value=${value} onQuote=${onQuote} without=${[name]} />`;
}

function Quote({ text, onQuote }) {
  return html`<button class="quote" onClick=${() => onQuote(text)} title="show its place in the rollout">“${visible(text)}”</button>`;
}

/** A text; what it quotes leads to its place. */
function Quoting({ text, onQuote }) {
  if (text.length > 20_000) return html`<${Text} text=${text} />`;
  const parts = text.split(/(“[^“”]{8,400}”|"[^"\n]{8,400}")/);
  if (parts.length < 2 || parts.length > 200) return html`<${Text} text=${text} />`;
  return html`<div class="text" tabindex="0">${parts.map((part, at) => (at % 2 ? html`<${Quote} text=${part.slice(1, -1)} onQuote=${onQuote} />` : visible(part)))}</div>`;
}
