// Asks the server, or answers from the data that a static report carries.

import { useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { answerFromReport } from "./report.js";

export const POLL_MS = 300;

export const isReport = Boolean(globalThis.ROLLOUT_REPORT);

export async function get(path, params = {}) {
  if (isReport) return answerFromReport(globalThis.ROLLOUT_REPORT, path, params);
  const text = new URLSearchParams(known(params)).toString();
  return read(await fetch(text ? `${path}?${text}` : path));
}

/** What the server answers: `found`, or an `error`. It is asked again when the files have changed, and
 * while it is still searching; the answer so far stays in sight. Without a path nothing is asked. */
export function useAnswer(path, params, version, ask = get) {
  const key = JSON.stringify([path, params]);
  const [held, setHeld] = useState({ key, found: null, error: "" });
  const current = useRef({ key, asked: 0, answered: 0 });
  if (current.current.key !== key) current.current = { key, asked: 0, answered: 0 };
  useEffect(() => {
    const mine = current.current;
    let timer;
    let isOver = !path;
    const update = async () => {
      const number = (mine.asked += 1);
      let answer;
      try {
        answer = { found: await ask(path, params), error: "" };
      } catch (problem) {
        answer = { found: null, error: problem.message };
      }
      if (current.current !== mine || number < mine.answered) return; // a later one has come
      mine.answered = number;
      setHeld({ key, ...answer });
      if (answer.found?.is_done === false && !isOver) timer = setTimeout(update, POLL_MS);
    };
    if (path) update();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [key, version]);
  return held.key === key ? held : { found: null, error: "" };
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
