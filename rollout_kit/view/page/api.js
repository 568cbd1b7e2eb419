// Asks the server, or answers from the data that a static report carries.

import { answerFromReport } from "./report.js";

export const isReport = Boolean(globalThis.ROLLOUT_REPORT);

export async function get(path, params = {}, signal = undefined) {
  if (isReport) return answerFromReport(globalThis.ROLLOUT_REPORT, path, params);
  const text = new URLSearchParams(known(params)).toString();
  return read(await fetch(text ? `${path}?${text}` : path, { signal }));
}

export async function post(path, params, body) {
  if (isReport) throw new Error("a report cannot be changed");
  const text = new URLSearchParams(known(params)).toString();
  return read(
    await fetch(`${path}?${text}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    }),
  );
}

async function read(reply) {
  const found = await reply.json().catch(() => null);
  if (reply.ok && found !== null) return found;
  const reason = found?.error?.message ?? found?.error;
  throw new Error(reason ?? `the server answered with status ${reply.status}`);
}

function known(params) {
  return Object.fromEntries(
    Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  );
}
