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
  const parts = Array.isArray(content) ? content : [content];
  return parts.map((part) => {
    if (typeof part === "string") return { text: part };
    const image = part?.image_url?.url ?? part?.image_url ?? (part?.type === "image" ? part.url : undefined);
    if (typeof image === "string") return { image };
    const text = part?.text ?? part?.refusal ?? part?.thinking ?? part?.logs;
    if (typeof text === "string") return { text, logprobs: part.logprobs };
    if (typeof part?.stdout === "string") return { text: ofCommand(part) };
    return { text: JSON.stringify(part, null, 2) };
  });
}

/** What a command of a shell wrote, and how it ended. */
function ofCommand({ stdout, stderr, outcome }) {
  const ended = outcome?.exit_code === undefined ? outcome?.type : `exit code ${outcome.exit_code}`;
  return [stdout, stderr && `[stderr]\n${stderr}`, ended && `[${ended}]`].filter(Boolean).join("\n");
}

export function textOf(content) {
  return partsOf(content)
    .map((part) => part.text ?? "[image]")
    .join("\n");
}

function Content({ content, showTokens, show = (text) => text }) {
  return partsOf(content).map((part) => {
    if (part.image) {
      return part.image.startsWith("data:image/")
        ? html`<img class="picture" src=${part.image} alt="image in the message" />`
        : html`<p class="note">An image at ${part.image} is not loaded.</p>`;
    }
    if (showTokens && part.logprobs?.length) return html`<${Tokens} tokens=${part.logprobs} />`;
    return html`<${Text} text=${show(part.text)} />`;
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
  if (isCall(item) || isOutput(item)) return "tools";
  if (item.role === "system" || item.role === "developer") return "system";
  return item.role === "user" ? "user" : "assistant";
}

/** Whether an item asks for a tool. Tools that the model's endpoint runs have their output on the item itself. */
function isCall(item) {
  return /_call$|^mcp_list_tools$|^mcp_approval_request$/.test(item?.type ?? "");
}

/** Whether an item answers such a one. */
function isOutput(item) {
  return /_call_output$|^tool_search_output$|^mcp_approval_response$/.test(item?.type ?? "");
}

/** Tool calls joined with their outputs. Several calls may have one id: the nth of them has the nth output. */
function joined(items) {
  const waiting = new Map();
  for (const item of items.filter(isOutput)) {
    const id = item.call_id ?? item.approval_request_id ?? item.id;
    waiting.set(id, [...(waiting.get(id) ?? []), item]);
  }
  const outputs = new Map();
  for (const item of items.filter(isCall)) {
    const output = (waiting.get(item.call_id) ?? waiting.get(item.id))?.shift();
    if (output) outputs.set(item, output);
  }
  const used = new Set(outputs.values());
  return items
    .filter((item) => !used.has(item))
    .map((item) =>
      item && typeof item === "object"
        ? { item, output: outputs.get(item) }
        : { item: { role: "assistant", content: JSON.stringify(item) } },
    );
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
  return html`<article class=${`item ${kind}`}>
    <h3>${headOf(item)}</h3>
    ${tokens
      ? html`<${Tokens} tokens=${tokens} />`
      : isCall(item)
        ? html`<div class="call">
            <${Text} text=${pretty(askedBy(item))} />
            <div class="output"><${Output} call=${item} output=${output} /></div>
          </div>`
        : isOutput(item)
          ? html`<${Results} item=${item} />`
          : html`<${Content} content=${contentOf(item)} showTokens=${showTokens} />`}
    ${(item.user_calls ?? []).map(
      (call) => html`<h4>the user called ${call.name}</h4>
        <${Text} text=${pretty(call.arguments)} />
        <${Content} content=${call.output} show=${pretty} />`,
    )}
  </article>`;
}

function headOf(item) {
  if (!isCall(item)) return item.role ?? item.type ?? "message";
  return `tool call: ${[item.server_label, item.name ?? item.type].filter(Boolean).join(" / ")}`;
}

/** Fields of a call or an output that hold what the tool returned. */
const RETURNED = ["output", "outputs", "results", "result", "tools", "approve", "reason", "error"];

const NOT_ASKED = new Set([...RETURNED, "id", "call_id", "type", "status", "name", "server_label", "provider_data"]);

/** What a call asks for. */
function askedBy(item) {
  const given = item.arguments ?? item.input ?? item.code;
  if (given !== undefined && given !== null) return given;
  const rest = Object.entries(item).filter(([name, value]) => !NOT_ASKED.has(name) && value !== null);
  if (!rest.length) return "";
  return rest.length === 1 ? rest[0][1] : Object.fromEntries(rest);
}

function Output({ call, output }) {
  const has = (item) => item && RETURNED.some((name) => item[name] !== undefined && item[name] !== null);
  if (!output && !has(call)) {
    const status = call.status && call.status !== "completed" ? ` It is ${call.status}.` : "";
    return html`<h4>output</h4><p class="note">This call has no output.${status}</p>`;
  }
  return html`${has(call) && html`<${Results} item=${call} />`}${output && html`<${Results} item=${output} />`}`;
}

/** Everything that a tool returned, on the item of its output or of its call. */
function Results({ item }) {
  return RETURNED.filter((name) => item[name] !== undefined && item[name] !== null).map((name) => {
    const value = item[name];
    const isImage = item.type === "image_generation_call" && name === "result";
    const content = isImage ? [{ image_url: `data:image/png;base64,${value}` }] : typeof value === "boolean" ? String(value) : value;
    return html`<h4>${name}</h4><${Content} content=${content} show=${pretty} />`;
  });
}

/** What an item says: messages have content, reasoning may have a summary, other items are shown as they are. */
function contentOf(item) {
  if (item.type === "reasoning") {
    const content = partsOf(item.content).length ? item.content : item.summary;
    return partsOf(content).length ? content : "(the model returned no reasoning text)";
  }
  if (item.content !== undefined || !item.type || item.type === "message") return item.content;
  const { provider_data: _, ...rest } = item;
  return JSON.stringify(rest, null, 2);
}
