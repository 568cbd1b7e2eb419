// Where the reader is: everything is in the address, so that any view can be linked to.

import { useEffect, useState } from "./vendor/preact-htm.js";

const NAMES = [
  "view",
  "where",
  "search",
  "sort",
  "file",
  "task_id",
  "agent",
  "scope",
  "rollout_index",
  "first",
  "second",
  "by",
  "column",
  "pair",
  "turn",
];

export function readPlace() {
  const query = new URLSearchParams(location.search || location.hash.slice(1));
  const { turn } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (turn) query.set("turn", turn);
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
}

export function addressOf(place) {
  const query = new URLSearchParams();
  const isReport = Boolean(globalThis.ROLLOUT_REPORT);
  for (const name of NAMES) if (place[name] && (isReport || name !== "turn")) query.set(name, place[name]);
  return isReport ? `#${query}` : `?${query}${place.turn ? `#turn=${place.turn}` : ""}`;
}

/** Writes into the address which turn is in sight. */
export function noteTurn(place, turn) {
  history.replaceState(null, "", addressOf({ ...place, turn: String(turn) }));
}

export function go(place, { replace = false } = {}) {
  const address = addressOf(place);
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new Event("rollouts:place"));
}

export function usePlace() {
  const [place, setPlace] = useState(readPlace());
  useEffect(() => {
    const read = () => setPlace(readPlace());
    addEventListener("rollouts:place", read);
    addEventListener("popstate", read);
    return () => {
      removeEventListener("rollouts:place", read);
      removeEventListener("popstate", read);
    };
  }, []);
  return place;
}

/** The parts of a place that choose rows. */
export function queryOf({ where, search, sort }) {
  return { where, search, sort };
}

/** The place of one rollout; the filter stays, so that its neighbours are those of the table. */
export function rolloutPlace(place, row) {
  return {
    ...queryOf(place),
    view: "rollout",
    file: row.file,
    task_id: row.task_id,
    agent: row.agent ?? "",
    scope: row.scope ?? "",
    rollout_index: String(row.rollout_index ?? 0),
  };
}
