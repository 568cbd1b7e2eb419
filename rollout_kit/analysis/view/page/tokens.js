// Tokens: how likely each was to the policy that sampled it, to a reference and to later policies, and what a trainer makes of it.

import { html, useContext, useMemo, useState } from "./vendor/preact-htm.js";
import { useAnswer } from "./api.js";
import { count, number } from "./format.js";
import { Reading, visible } from "./texts.js";

const MAX_SHOWN = 20_000;
const MAX_GIVEN = 400;

const places = new WeakMap();

/** Notes which numbers the items of an output have, from `begin` on. */
export function notePlaces(items, begin) {
  for (const [at, item] of items.entries()) if (item && typeof item === "object") places.set(item, begin + at);
}

/** What a trainer knows of a rollout: the advantage in its group, and the scores of other policies by item. */
export function useTraining(rollout, isShown) {
  const { found: group } = useAnswer(isShown ? "/api/group" : "", { id: rollout.id }, rollout);
  return useMemo(() => {
    const own = group?.members.find((each) => each.id === rollout.id);
    const [advantage] = (own && advantagesOf([own], group.members)) ?? [];
    const known = Object.entries(rollout.token_scores ?? {});
    const scoresOf = (item) => known.map(([policy, items]) => [policy, items?.[places.get(item)]]).filter(([, each]) => Array.isArray(each));
    return { advantage, scoresOf };
  }, [group, rollout]);
}

/** The tokens of a turn as the engine reported them; before them those of its prompt that no policy has sampled. */
export function SampledTokens({ item }) {
  const { training } = useContext(Reading);
  const scores = training?.scoresOf(item) ?? [];
  const given = (item.prompt_suffix_token_ids ?? item.prompt_token_ids ?? []).slice(-MAX_GIVEN);
  const logprobs = item.generation_log_probs ?? [];
  const tokens = [
    ...given.map((id) => ({ id, mask: 0 })),
    ...item.generation_token_ids.map((id, at) => ({
      id,
      mask: 1,
      logprob: logprobs[at],
      version: versionOf(item, at),
      advantage: training?.advantage,
      others: scores.map(([policy, each]) => [policy, each[at]]),
    })),
  ];
  return html`<${Tokens} tokens=${tokens} />`;
}

function versionOf(item, at) {
  const span = item.policy_version_spans?.find(([start, end]) => start <= at && at < end);
  return span?.[2] ?? item.policy_version_first;
}

/** Tokens, the darker the less likely. The arrows step through them, and the line below says what is known of one. */
export function Tokens({ tokens }) {
  const [at, setAt] = useState(-1);
  const shown = tokens.slice(0, MAX_SHOWN);
  const policies = [...new Set(tokens.flatMap((each) => (each.others ?? []).map(([policy]) => policy)))];
  const [by, setBy] = useState("");
  const step = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    setAt(Math.max(0, Math.min(shown.length - 1, (at < 0 ? 0 : at) + (at < 0 ? 0 : by))));
  };
  const heatOf = (each) => {
    if (each.mask === 0) return "given";
    const other = (each.others ?? []).find(([policy]) => policy === by)?.[1];
    const value = by ? -Math.abs((other ?? each.logprob) - each.logprob) : (each.logprob ?? 0);
    return `heat-${Math.max(0, Math.min(9, Math.floor(-value * 2)))}`;
  };
  return html`<div class="tokens-view">
    ${policies.length > 0 &&
    html`<p><label>colour by <select value=${by} onChange=${(event) => setBy(event.target.value)}>
      <option value="">log-prob as sampled</option>${policies.map((policy) => html`<option value=${policy}>difference to ${visible(policy)}</option>`)}</select></label></p>`}
    <div class="text tokens" tabindex="0" role="group" aria-label="tokens: the arrows step through them" onKeyDown=${step}>
      ${shown.map((each, place) => html`<span class=${`token ${heatOf(each)}${place === at ? " at" : ""}`} title=${describe(each)} onClick=${() => setAt(place)}>${spell(each)}</span>`)}
      ${tokens.length > shown.length && html`<em>… ${count(tokens.length - shown.length, "more token")}</em>`}
    </div>
    <p class="note" role="status">${at < 0 ? `${count(tokens.length, "token")}: click on one, or focus them and press an arrow` : `${number(at + 1)} of ${number(tokens.length)}: ${describe(shown[at])}`}</p>
  </div>`;
}

function spell(each) {
  return each.token === undefined ? `${each.id} ` : visible(each.token);
}

function describe(each) {
  const likely = (value) => `log-prob ${number(value)}, p ${number(Math.exp(value), 3)}`;
  const parts = [each.token === undefined ? `token ${each.id}` : JSON.stringify(each.token)];
  if (each.mask === 0) return `${parts[0]}, given, mask 0`;
  if (typeof each.logprob === "number") parts.push(likely(each.logprob));
  for (const [policy, value] of each.others ?? []) if (typeof value === "number") parts.push(`${policy}: ${likely(value)}, ratio ${number(Math.exp(value - each.logprob), 3)}`);
  if (each.mask !== undefined) parts.push(`mask ${each.mask}`);
  if (each.advantage !== undefined && each.advantage !== null) parts.push(`advantage ${number(each.advantage, 4)}`);
  if (each.version !== undefined) parts.push(`version ${each.version}`);
  return parts.join(", ");
}

/** As GRPO computes them in the group; null where it says nothing. */
export function advantagesOf(members, group) {
  const rewards = group.map((each) => each.reward).filter((each) => typeof each === "number");
  if (rewards.length < 2 || members.some((each) => typeof each.reward !== "number")) return null;
  const mean = rewards.reduce((sum, each) => sum + each, 0) / rewards.length;
  const deviation = Math.sqrt(rewards.reduce((sum, each) => sum + (each - mean) ** 2, 0) / rewards.length);
  return deviation ? members.map((each) => (each.reward - mean) / deviation) : null;
}
