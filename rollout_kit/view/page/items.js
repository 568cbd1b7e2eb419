// The items of a rollout: messages, reasoning, tool calls beside their outputs. All text of a model
// is shown as text; images are shown only from data in the message itself.

import { html, useState } from "./vendor/preact-htm.js";
import { number } from "./format.js";

const SHOWN_CHARS = 8000;

/** A long text, folded. */
export function Text({ text, plain }) {
  const [isWhole, setWhole] = useState(false);
  const isLong = text.length > SHOWN_CHARS;
  const shown = isLong && !isWhole ? text.slice(0, SHOWN_CHARS) : text;
  return html`<div class=${plain ? "text plain" : "text"} tabindex="0">${shown}${
    isLong &&
    html`<button class="more" onClick=${() => setWhole(!isWhole)}>
      ${isWhole ? "show less" : `show ${number(text.length - SHOWN_CHARS)} more characters`}
    </button>`
  }</div>`;
}

export function partsOf(content) {
  if (content === null || content === undefined) return [];
  if (typeof content === "string") return [{ text: content }];
  if (!Array.isArray(content)) return [{ text: JSON.stringify(content, null, 2) }];
  return content.map((part) => {
    if (typeof part === "string") return { text: part };
    const image = part?.image_url?.url ?? part?.image_url;
    if (typeof image === "string") return { image };
    const text = part?.text ?? part?.refusal ?? part?.thinking;
    if (typeof text === "string") return { text, logprobs: part.logprobs };
    return { text: JSON.stringify(part, null, 2) };
  });
}

export function textOf(content) {
  return partsOf(content)
    .map((part) => part.text ?? "[image]")
    .join("\n");
}

function Content({ content, showTokens }) {
  return partsOf(content).map((part) => {
    if (part.image) {
      return part.image.startsWith("data:image/")
        ? html`<img class="picture" src=${part.image} alt="image in the message" />`
        : html`<p class="note">An image at ${part.image} is not loaded.</p>`;
    }
    if (showTokens && part.logprobs?.length) return html`<${Tokens} tokens=${part.logprobs} />`;
    return html`<${Text} text=${part.text} />`;
  });
}

/** Tokens, the darker the less likely. */
function Tokens({ tokens }) {
  const shown = tokens.slice(0, 20000);
  return html`<div class="text tokens">
    ${shown.map((each) => {
      const value = each.logprob ?? 0;
      const step = Math.min(9, Math.floor(-value * 2));
      const title = `${JSON.stringify(each.token ?? each.id)} log-prob ${number(value)}, p ${number(Math.exp(value), 3)}`;
      return html`<span class=${`token heat-${step}`} title=${title}>${each.token ?? `${each.id} `}</span>`;
    })}
    ${tokens.length > shown.length && html`<em>… ${number(tokens.length - shown.length)} more tokens</em>`}
  </div>`;
}

/** The token ids and log-probs of an item, as the engine reported them. */
function tokensOf(item) {
  const ids = item.generation_token_ids;
  if (!Array.isArray(ids)) return null;
  const logprobs = item.generation_log_probs ?? [];
  return ids.map((id, at) => ({ id, logprob: logprobs[at] ?? 0 }));
}

export function hasTokens(items) {
  return items.some((item) => tokensOf(item) || partsOf(item.content).some((part) => part.logprobs?.length));
}

/** Kinds of items that a reader can hide. */
export const KINDS = ["system", "user", "assistant", "reasoning", "tools"];

function kindOf(item) {
  const type = item.type ?? "message";
  if (type === "reasoning") return "reasoning";
  if (type.endsWith("_call") || type.endsWith("_call_output")) return "tools";
  if (item.role === "system" || item.role === "developer") return "system";
  return item.role === "user" ? "user" : "assistant";
}

/** Tool calls joined with their outputs by their id. */
function joined(items) {
  const outputs = new Map();
  for (const item of items) {
    if (item?.type?.endsWith("_call_output")) outputs.set(item.call_id, item);
  }
  const found = [];
  const used = new Set();
  for (const item of items) {
    if (!item || typeof item !== "object") {
      found.push({ item: { role: "assistant", content: JSON.stringify(item) } });
    } else if (item.type?.endsWith("_call")) {
      const output = outputs.get(item.call_id);
      if (output) used.add(output);
      found.push({ item, output });
    } else if (!used.has(item)) {
      found.push({ item });
    }
  }
  return found;
}

function pretty(text) {
  if (typeof text !== "string") return JSON.stringify(text, null, 2) ?? "";
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export function Items({ items, hidden, showTokens }) {
  return joined(items)
    .filter(({ item }) => !hidden.includes(kindOf(item)))
    .map(({ item, output }) => html`<${Item} item=${item} output=${output} showTokens=${showTokens} />`);
}

function Item({ item, output, showTokens }) {
  const kind = kindOf(item);
  const tokens = showTokens && tokensOf(item);
  const role = item.type?.endsWith("_call") ? `tool call: ${item.name ?? item.type}` : (item.role ?? item.type ?? "message");
  return html`<article class=${`item ${kind}`}>
    <h3>${role}</h3>
    ${tokens
      ? html`<${Tokens} tokens=${tokens} />`
      : item.type?.endsWith("_call")
        ? html`<div class="call">
            <${Text} text=${pretty(item.arguments ?? item.input ?? item.action ?? "")} />
            <div class="output">
              <h4>output</h4>
              ${output
                ? html`<${Text} text=${typeof output.output === "string" ? pretty(output.output) : textOf(output.output)} />`
                : html`<p class="note">This call has no output.</p>`}
            </div>
          </div>`
        : item.type?.endsWith("_call_output")
          ? html`<${Text} text=${textOf(item.output)} />`
          : html`<${Content} content=${reasoningOf(item)} showTokens=${showTokens} />`}
  </article>`;
}

function reasoningOf(item) {
  if (item.type !== "reasoning") return item.content;
  const content = partsOf(item.content).length ? item.content : item.summary;
  return partsOf(content).length ? content : "(the model returned no reasoning text)";
}
