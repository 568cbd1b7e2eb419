// The knobs of a run. Each request is checked and answered by the run itself.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { post } from "./ask.js";

const ASK_AGAIN_MS = 4000;

/** What a request changes, in a line; an error is thrown. */
export async function steer(now, request) {
  const { changes } = await post("/api/steer", { run: now.run_id, steer: request });
  return changes.length ? changes.map((each) => `${each.what}: ${spell(each.old)} → ${spell(each.new)}`).join(", ") : "nothing changes: it is so already";
}

export function spell(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function Steering({ now }) {
  const [said, setSaid] = useState({ text: "", isError: false });
  const ask = async (request) => {
    try {
      setSaid({ text: await steer(now, request), isError: false });
    } catch (error) {
      setSaid({ text: error.message, isError: true });
    }
  };
  const isHeld = ["paused", "pausing"].includes(now.state);
  const isOver = ["stopping", "ended"].includes(now.state);
  return html`<section class="steering" aria-label="steering">
    <${Knob} name="parallelism" label="parallelism" hint="64, auto, 4-64-512" ask=${ask} disabled=${isOver} />
    <${Knob} name="max_cost_usd" label="cost limit, $" read=${numeric} hint=${now.max_cost_usd ?? "none"} ask=${ask} disabled=${isOver} />
    <${Knob} name="max_total_tokens" label="token limit" read=${numeric} hint=${now.max_total_tokens ?? "none"} ask=${ask} disabled=${isOver} />
    <${Knob} name="max_minutes" label="minutes" read=${numeric} hint=${now.max_minutes ?? "none"} ask=${ask} disabled=${isOver} />
    <button disabled=${isOver} onClick=${() => ask({ paused: !isHeld })}>${isHeld ? "resume" : "pause"}</button>
    <${Sure} text="stop" disabled=${isOver} onSure=${() => ask({ stop: "drain" })} />
    ${isOver && html`<${Sure} text="cancel what is in flight" onSure=${() => ask({ stop: "now" })} />`}
    <p class=${`said ${said.isError ? "error" : "note"}`} role=${said.isError ? "alert" : "status"}>${said.text}</p>
  </section>`;
}

function Knob({ name, label, hint, read = (text) => text, ask, disabled }) {
  const set = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get(name).trim();
    if (text) ask({ [name]: read(text) });
    event.target.reset();
  };
  return html`<form onSubmit=${set}>
    <label>${label}<input name=${name} placeholder=${String(hint)} autocomplete="off" disabled=${disabled} /></label>
    <button aria-label=${`set ${label}`} disabled=${disabled}>set</button>
  </form>`;
}

/** A number, or null for `none`; other texts are left for the run to refuse. */
function numeric(text) {
  if (["none", "null"].includes(text)) return null;
  return Number.isNaN(Number(text)) ? text : Number(text);
}

/** A button that asks once more before it acts. */
export function Sure({ text, onSure, disabled = false, label = text }) {
  const [isAsked, setAsked] = useState(false);
  useEffect(() => {
    const timer = isAsked && setTimeout(() => setAsked(false), ASK_AGAIN_MS);
    return () => clearTimeout(timer);
  }, [isAsked]);
  const act = () => {
    setAsked(!isAsked);
    if (isAsked) onSure();
  };
  return html`<button class="danger" disabled=${disabled} aria-label=${isAsked ? `really ${label}` : label} onClick=${act}>${isAsked ? `really ${text}?` : text}</button>`;
}
