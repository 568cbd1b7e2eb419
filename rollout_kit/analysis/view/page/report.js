// Answers of a static report: what the server would say about the rollouts in it.

export function answerFromReport(report, path, params) {
  const answer = {
    "/api/state": () => report.state,
    "/api/rows": () => chosenRows(report, params),
    "/api/rollout": () => found(report.rollouts[params.id], params.id),
    "/api/inside": () => inside(found(report.rollouts[params.id], params.id), params.text.toLowerCase()),
    "/api/group": () => group(report, params.id),
    "/api/neighbours": () => neighbours(report, params),
    "/api/histogram": () => histogram(report, params),
    "/api/plots": () => report.plots,
    "/api/find": () => ({ id: find(report, params) }),
  }[path];
  if (!answer) throw new Error("a report does not hold this");
  return answer();
}

function found(value, id) {
  if (value === undefined) throw new Error(`the report has no row ${id}`);
  return value;
}

function rowsOf(report, { search, sort }) {
  const text = (search ?? "").toLowerCase();
  const rows = report.rows.filter(
    (row) => !text || JSON.stringify(report.rollouts[row.id].line).toLowerCase().includes(text),
  );
  return sort ? sorted(rows, sort) : rows;
}

function sorted(rows, sort) {
  const name = sort.replace(/^-/, "");
  const sign = sort.startsWith("-") ? -1 : 1;
  const isKnown = (row) => row[name] !== null && row[name] !== undefined;
  const order = (one, other) => (one[name] < other[name] ? -sign : one[name] > other[name] ? sign : 0);
  return [...rows.filter(isKnown).sort(order), ...rows.filter((row) => !isKnown(row))];
}

function chosenRows(report, params) {
  const rows = rowsOf(report, params);
  const start = Number(params.start ?? 0);
  return {
    total: rows.length,
    is_done: true,
    searched: 1,
    error: "",
    version: 0,
    generation: 0,
    rows: rows.slice(start, start + Number(params.count ?? 100)),
  };
}

function neighbours(report, params) {
  const ids = rowsOf(report, params).map((row) => row.id);
  const at = ids.indexOf(Number(params.id));
  return {
    total: ids.length,
    position: at < 0 ? null : at,
    previous: ids[at - 1] ?? null,
    next: at < 0 ? null : (ids[at + 1] ?? null),
  };
}

function group(report, id) {
  const row = report.rows.find((each) => each.id === Number(id));
  return found(report.groups[`${row?.file}\n${row?.task_id}`], id);
}

function find(report, { file, task_id, rollout_index, agent, scope }) {
  const row = report.rows.find(
    (each) =>
      each.file === file &&
      each.task_id === task_id &&
      String(each.rollout_index) === String(rollout_index ?? 0) &&
      (each.agent ?? "") === (agent ?? "") &&
      (each.scope ?? "") === (scope ?? ""),
  );
  return found(row?.id, task_id);
}

function histogram(report, params) {
  const found = report.histograms[params.column];
  if (!found) throw new Error(`the report has no histogram of ${params.column}`);
  return found;
}

/** Where a text stands in a rollout, as the server says it. */
function inside(rollout, text) {
  const hits = [];
  const { line, steps = [] } = rollout;
  const { responses_create_params: params, response, ...rest } = line;
  const add = (turn, value) => {
    for (const held of strings(value)) {
      const low = held.toLowerCase();
      for (let at = low.indexOf(text); text && at >= 0; at = low.indexOf(text, at + text.length)) {
        hits.push({ turn, item: 0, excerpt: held.slice(Math.max(0, at - 60), at + text.length + 60) });
      }
    }
  };
  add(0, [params?.instructions, params?.input]);
  for (const step of steps) add(step.number, (response?.output ?? []).slice(step.begin, step.end));
  add(-1, rest);
  return { hits: hits.slice(0, 2000), total: hits.length };
}

const HIDDEN = new Set(["type", "role", "status", "id", "call_id", "kind", "schema", "agent_ref"]);

function strings(value) {
  if (typeof value === "string") return [value];
  if (!value || typeof value !== "object") return [];
  return Object.entries(value).flatMap(([name, each]) => (HIDDEN.has(name) ? [] : strings(each)));
}
