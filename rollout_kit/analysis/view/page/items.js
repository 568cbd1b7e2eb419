// The items of a rollout: messages, reasoning, tool calls beside their outputs. Images are shown only
// from data in the message itself.

import { html, useContext } from "./vendor/preact-htm.js";
import { number } from "./format.js";
import { Picture, placesOf } from "./picture.js";
import { Asked, Markdown, Returned } from "./rich.js";
import { Copy, Reading, Text, pretty } from "./texts.js";
import { SampledTokens, Tokens } from "./tokens.js";

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

function Content({ content, showTokens, Show = Markdown, places }) {
  return partsOf(content).map((part) => {
    if (part.image) {
      return part.image.startsWith("data:image/")
        ? html`<${Picture} source=${part.image} places=${places} />`
        : html`<p class="note">An image at ${part.image} is not loaded.</p>`;
    }
    if (showTokens && part.logprobs?.length) return html`<${Tokens} tokens=${part.logprobs} />`;
    return html`<${Show} text=${part.text} />`;
  });
}

export function hasTokens(items) {
  return items.some((item) => Array.isArray(item.generation_token_ids) || partsOf(item.content).some((part) => part.logprobs?.length));
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

/** Tool calls joined with their outputs, and which of the items they are. Several calls may have one id: the nth of them has the nth output. */
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
    .map((item, at) =>
      item && typeof item === "object"
        ? { item, number: at + 1, output: outputs.get(item) }
        : { item: { role: "assistant", content: JSON.stringify(item) }, number: at + 1 },
    )
    .filter(({ item }) => !used.has(item));
}

/** `linkTo` gives the address of the nth message, where they have one. */
export function Items({ items, hidden, showTokens, linkTo }) {
  return joined(items)
    .filter(({ item }) => !hidden.includes(kindOf(item)))
    .map(({ item, output, number: nth }) => html`<${Item} item=${item} output=${output} showTokens=${showTokens} nth=${nth} link=${linkTo && (() => linkTo(nth))} />`);
}

function Item({ item, output, showTokens, nth, link }) {
  const { isPrinting, found } = useContext(Reading);
  const kind = kindOf(item);
  const sampled = showTokens && Array.isArray(item.generation_token_ids);
  const content = html`<${Content} content=${contentOf(item)} showTokens=${showTokens} />`;
  return html`<article class=${`item ${kind}`} data-item=${nth}>
    <h3>${headOf(item)} ${isCall(item) && html`<${Copy} name="copy the call" text=${() => copied(item)} />`}
      ${link && html`<${Copy} name="copy a link to this message" text=${link} />`}</h3>
    ${sampled
      ? html`<${SampledTokens} item=${item} />`
      : isCall(item)
        ? html`<div class="call">
            <div class="asked"><${Asked} text=${askedBy(item)} tool=${item.name ?? item.type} /></div>
            <div class="output"><${Output} call=${item} output=${output} /></div>
          </div>`
        : isOutput(item)
          ? html`<${Results} item=${item} />`
          : kind === "reasoning"
            ? html`<details open=${isPrinting || Boolean(found)}><summary>reasoning, ${number(textOf(contentOf(item)).length)} characters</summary>${content}</details>`
            : content}
    ${(item.user_calls ?? []).map(
      (call) => html`<h4>the user called ${call.name}</h4>
        <${Asked} text=${call.arguments} tool=${call.name} />
        <${Content} content=${call.output} Show=${Returned} />`,
    )}
  </article>`;
}

/** What a copied call is: the command of a shell as it stands, else its arguments. */
function copied(item) {
  const asked = askedBy(item);
  const text = typeof asked === "string" ? asked : JSON.stringify(asked, null, 2);
  try {
    const { command, cmd } = JSON.parse(text);
    if (typeof (command ?? cmd) === "string") return command ?? cmd;
  } catch {
    // it is no JSON
  }
  return pretty(text);
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
  return html`${has(call) && html`<${Results} item=${call} />`}${output && html`<${Results} item=${output} places=${placesOf(askedBy(call))} />`}`;
}

/** Everything that a tool returned, on the item of its output or of its call. */
function Results({ item, places }) {
  return RETURNED.filter((name) => item[name] !== undefined && item[name] !== null).map((name) => {
    const value = item[name];
    const isImage = item.type === "image_generation_call" && name === "result";
    const content = isImage ? [{ image_url: `data:image/png;base64,${value}` }] : typeof value === "boolean" ? String(value) : value;
    return html`<h4>${name}</h4><${Content} content=${content} Show=${Returned} places=${places} />`;
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
