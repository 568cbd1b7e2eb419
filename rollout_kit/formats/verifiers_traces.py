"""Results of verifiers: `traces.jsonl` of 0.4, whose lines are episodes, and `results.jsonl` of
earlier versions, whose lines are rollouts."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ..responses import as_object
from ..trajectory import GENERATION, LOG_PROBS, PROMPT, SUFFIX, ModelCall
from ..types import JsonObject
from .chat_items import Items, as_tools, read_messages
from .foreign import Damaged, Foreign, count_in, number_in, read_safely, rest_of

NAME = "verifiers"

OF_RESULTS = (
    *("prompt", "completion", "reward", "answer", "task", "example_id", "metrics", "info"),
    *("error", "tool_defs", "id"),
)


def is_line(row: JsonObject) -> bool:
    is_episode = isinstance(row.get("traces"), list) and "env" in row
    is_trace = isinstance(row.get("nodes"), list) and "rewards" in row
    is_result = {"prompt", "completion", "reward"} <= row.keys() and bool(
        {"example_id", "id", "task"} & row.keys()
    )
    return is_episode or is_trace or is_result


def read_line(row: JsonObject) -> Iterator[Foreign | Damaged]:
    """The rollouts of a line."""
    if "completion" in row:
        yield read_safely(read_result, row)
        return
    if "traces" not in row:
        yield read_safely(read_trace, row)
        return
    if not isinstance(row["traces"], list) or not row["traces"]:
        yield Damaged("an episode has no list of traces, or an empty one")
        return
    episode = rest_of(row, "traces", "task")
    for trace in row["traces"]:
        found = read_safely(read_trace, as_object(trace))
        if isinstance(found, Foreign):
            found.kept["episode"] = episode
        yield found


def read_result(row: Mapping[str, Any]) -> Foreign:
    """A line of an earlier version."""
    prompt, completion = (
        [{"role": role, "content": each}] if isinstance(each, str) else each or []
        for role, each in (("user", row["prompt"]), ("assistant", row["completion"]))
    )
    asked, said = read_messages(prompt), read_messages(completion)
    ends = [said.end_of_turn(at) for at, role in enumerate(said.roles) if role == "assistant"]
    fields = {"expected_answer": row.get("answer"), "info": row.get("info")}
    error = row.get("error")
    unread = [*asked.unread, *said.unread]
    return Foreign(
        str(row.get("task") or NAME),
        asked.items,
        said.items,
        fields={name: value for name, value in fields.items() if value not in (None, "", {})},
        tools=as_tools(row.get("tool_defs")),
        calls=[ModelCall(to=end) for end in ends],
        reward=number_in(row.get("reward")),
        scores=_numbers(as_object(row.get("metrics"))),
        error=None if error is None else str(error),
        kept={
            **rest_of(row, *OF_RESULTS),
            **({"messages": unread} if unread else {}),
            "example_id": row.get("example_id", row.get("id")),
        },
    )


def read_trace(trace: Mapping[str, Any]) -> Foreign:
    """A trace; Damaged if its graph of messages is none."""
    nodes = trace.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(each, dict) for each in nodes):
        raise Damaged("a trace has no nodes")
    path = _find_path(nodes)
    first = next((at for at, number in enumerate(path) if nodes[number].get("sampled")), len(path))
    asked, said = (
        read_messages(_as_chat(nodes[number].get("message")) for number in part)
        for part in (path[:first], path[first:])
    )
    own_nodes = [nodes[number] for number in path]
    has_tokens = _put_tokens(own_nodes, first, said)
    places = {number: said.end_of_turn(at) for at, number in enumerate(path[first:])}
    told = [as_object(each) for each in trace.get("calls") or []]
    task, agent = as_object(trace.get("task")), as_object(trace.get("agent"))
    timing = as_object(trace.get("timing"))
    data = dict(as_object(task.get("data")))
    rewards = {name: as_object(each) for name, each in as_object(trace.get("rewards")).items()}
    calls = [_call(each, places, timing) for each in told if each.get("node") in places]
    errors = [as_object(each) for each in trace.get("errors") or []]
    agent_config = as_object(agent.get("config"))
    found = Foreign(
        str(_row_of(data, "agent_ref").get("name") or agent.get("name") or NAME),
        asked.items,
        said.items,
        name=str(task["key"]) if task.get("key") else None,
        fields=_read_fields(data),
        tools=as_tools(trace.get("tools") or (own_nodes[0].get("tools") if own_nodes else None)),
        model=str(agent_config.get("model") or next((e.get("model") for e in told), "") or ""),
        calls=calls,
        reward=_reward(rewards),
        scores={
            **{name: number_in(each.get("score")) for name, each in rewards.items() if each},
            **_numbers(as_object(trace.get("metrics"))),
        },
        known={"started_at": _time(timing.get("start"))},
        error=str(errors[0].get("message")) if errors else None,
    )
    unused = {str(at): each for at, each in enumerate(nodes) if at not in set(path)}
    others = [each for each in told if each.get("node") not in places]
    unread = [*asked.unread, *said.unread]
    read = OF_NODE if has_tokens else OF_NODE[:-3]
    of_nodes = {str(at): rest for at in path if (rest := rest_of(nodes[at], *read))}
    more = {"other_nodes": unused, "other_calls": others, "messages": unread, "agent": agent_config}
    more["nodes"] = of_nodes
    found.kept = {**rest_of(trace, *OF_TRACE), **rest_of(more), "task": rest_of(task, "key")}
    return found


OF_GYM = ("responses_create_params", "agent_ref")


def _read_fields(data: JsonObject) -> JsonObject:
    """Fields of the task's row: all of it, where the task is one of a resources server."""
    if row := {name: each for name, each in _row_of(data).items() if name not in OF_GYM}:
        return row
    return {} if data.get("answer") is None else {"expected_answer": data["answer"]}


def _row_of(data: JsonObject, *path: str) -> JsonObject:
    found = as_object(data.get("row"))
    for name in path:
        found = as_object(found.get(name))
    return dict(found)


OF_TRACE = ("nodes", "calls", "task", "agent", "tools", "metrics", "version", "verifiers")


OF_NODE = ("parent", "message", "sampled", "tools", "token_ids", "mask", "logprobs")
"""What is read of a node; the last three only together."""


def _find_path(nodes: list[JsonObject]) -> list[int]:
    """The numbers of the nodes from a root to the last node that a model made."""
    sampled = [at for at, each in enumerate(nodes) if each.get("sampled")]
    at: Any = sampled[-1] if sampled else len(nodes) - 1
    children = {each.get("parent"): number for number, each in enumerate(nodes)}
    while at >= 0 and children.get(at, -1) > at:  # what followed, as a tool's last output
        at = children[at]
    path: list[int] = []
    while isinstance(at, int) and 0 <= at < len(nodes) and len(path) <= len(nodes):
        path.append(at)
        at = nodes[at].get("parent")
    if (at is not None and path) or len(path) > len(nodes):
        raise Damaged("the parents of a trace's nodes are no path")
    return path[::-1]


def _as_chat(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if value is not None}


def _put_tokens(nodes: list[JsonObject], first: int, said: Items) -> bool:
    """Put the token ids of the sampled nodes on the last items of their turns; whether they could
    be read to the end."""
    pending: list[int] = []
    name = PROMPT
    for at, node in enumerate(nodes):
        ids, mask = node.get("token_ids") or [], node.get("mask") or []
        if len(ids) != len(mask):
            return False
        start = next((place for place, is_own in enumerate(mask) if is_own), len(ids))
        pending += ids[:start]
        if not node.get("sampled") or not ids:
            continue
        if not all(mask[start:]):
            return False
        item = said.items[said.ends[at - first] - 1]
        item[name], item[GENERATION] = pending, ids[start:]
        log_probs = node.get("logprobs") or []
        if len(log_probs) == len(ids) - start:
            item[LOG_PROBS] = log_probs
        pending, name = [], SUFFIX
    return not pending


def _call(
    call: Mapping[str, Any], places: Mapping[int, int], timing: Mapping[str, Any]
) -> ModelCall:
    usage, time = as_object(call.get("usage")), as_object(call.get("time"))
    start, end = (number_in(time.get(each)) for each in ("start", "end"))
    began = number_in(timing.get("start"))
    return ModelCall(
        to=places[call["node"]],
        start_s=max(0.0, start - began) if start and began else None,
        model_s=max(0.0, end - start) if start and end else None,
        input=count_in(usage.get("prompt_tokens")),
        cached=count_in(usage.get("cached_input_tokens")),
        output=count_in(usage.get("completion_tokens")),
        cost_usd=number_in(usage.get("cost")),
        finish=call["finish_reason"] if isinstance(call.get("finish_reason"), str) else None,
        model=call["model"] if isinstance(call.get("model"), str) else None,
    )


def _reward(rewards: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The weighted sum, as verifiers has it; None if one of them was not scored."""
    values: list[float] = []
    for each in rewards.values():
        score, weight = number_in(each.get("score")), number_in(each.get("weight", 1.0))
        if score is None or weight is None:
            return None
        values.append(score * weight)
    return sum(values) if values else None


def _numbers(metrics: Mapping[str, Any]) -> JsonObject:
    numbers = {name: number_in(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def _time(seconds: Any) -> str | None:
    if (number := number_in(seconds)) is None or not 0 < number < 1e11:
        return None
    return datetime.fromtimestamp(number, UTC).isoformat(timespec="milliseconds")
