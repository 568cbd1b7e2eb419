"""One rollout as another tool recorded it, and the line that becomes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any

from ..responses import Item, function_calls, make_response, sum_usage
from ..store.kinds import parse_head
from ..store.lines import NOT_OF_ROW, build_line, with_verdict
from ..store.tasks import task_id_of
from ..trajectory import ModelCall, pack_turns
from ..types import JsonObject, Key, Task, is_countable

CUT = {"length": "max_output_tokens", "max_tokens": "max_output_tokens"}
"""Finish reason → `incomplete_details.reason` of the Responses API."""

FAILED = "error"
"""Finish reason of a rollout that its tool could not finish."""


class Damaged(ValueError):
    """A rollout cannot be read; the text says why."""


@dataclass(slots=True)
class Foreign:
    """None means that the other tool does not say it."""

    agent: str
    input: list[Item]
    output: list[Item]
    name: str | None = None
    """The task's name in the other tool; without one, its input is its identity."""
    fields: JsonObject = field(default_factory=dict)
    """Fields of the task's row."""
    tools: list[JsonObject] = field(default_factory=list)
    params: JsonObject = field(default_factory=dict)
    """Other create params."""
    model: str = ""
    calls: list[ModelCall] = field(default_factory=list)
    reward: float | None = None
    scores: JsonObject = field(default_factory=dict)
    index: int | None = None
    usage: JsonObject | None = None
    known: JsonObject = field(default_factory=dict)
    """More of the `rollout` block, as `started_at`. Unknown values are left out."""
    error: str | None = None
    kept: JsonObject = field(default_factory=dict)
    """What has no place in a line of ours."""
    response: JsonObject | None = None
    """The response as it was recorded, where it is one of the Responses API."""
    id: str | None = None
    """The task's id, if it is one of ours."""

    @property
    def task_id(self) -> str:
        if self.id is not None:
            return self.id
        return task_id_of({"input": self.input} if self.name is None else {"task": self.name})


MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a value of another kind than the format has can raise."""


def read_safely(read: Callable[..., Foreign], *given: Any) -> Foreign | Damaged:
    """The rollout that `read` finds, or why there is none."""
    try:
        return read(*given)
    except Damaged as error:
        return error
    except MALFORMED as error:
        return malformed(error)


def malformed(error: Exception) -> Damaged:
    return Damaged(f"malformed: {error!r}"[:200])


def build(foreign: Foreign, format: str, key: Key, position: int, number: int) -> JsonObject:
    """The line of a rollout. What has no place stands in it under the name of the format. Damaged
    if no reader of rollouts would take the line."""
    params = {**foreign.params, "input": foreign.input}
    if foreign.tools:
        params["tools"] = foreign.tools
    own = {name: value for name, value in foreign.fields.items() if name not in NOT_OF_ROW}
    scores = {name: value for name, value in foreign.scores.items() if name not in NOT_OF_ROW}
    kept = dict(foreign.kept)
    for title, given, taken in (
        ("fields", foreign.fields, own),
        ("scores", foreign.scores, scores),
    ):
        if rest := {name: value for name, value in given.items() if name not in taken}:
            kept[f"other_{title}"] = rest
    row = {"responses_create_params": params, **own, **({format: kept} if kept else {})}
    task = Task(key.task_id, position, number, key.agent, row)
    line = build_line(task, key, _response(foreign, params), _block(foreign, format))
    line = with_verdict(line, {**scores, "reward": foreign.reward}, {})
    if parse_head(line) is None:
        raise Damaged("its usage or its numbers are of another kind than its format says")
    return line


def _response(foreign: Foreign, params: JsonObject) -> JsonObject:
    if foreign.response is not None:
        return foreign.response
    finish = foreign.calls[-1].finish if foreign.calls else None
    response = make_response(
        foreign.model,
        foreign.output,
        foreign.usage,
        incomplete_reason=CUT.get(finish or ""),
        params=params,
    )
    response["usage"] = _usage(foreign)
    if foreign.error is not None:
        response |= {
            "status": "failed",
            "error": {"code": "server_error", "message": foreign.error},
        }
    return response


def _usage(foreign: Foreign) -> JsonObject | None:
    """None if it is unknown: a sum over some of the calls would be too low."""
    if foreign.usage is not None:
        return sum_usage([foreign.usage])
    calls = foreign.calls
    if not calls or any(each.input is None or each.output is None for each in calls):
        return None
    asked, said = (sum(getattr(each, name) for each in calls) for name in ("input", "output"))
    found: JsonObject = {"input_tokens": asked, "output_tokens": said, "total_tokens": asked + said}
    if all(each.cached is not None for each in calls):
        found["input_tokens_details"] = {"cached_tokens": sum(each.cached or 0 for each in calls)}
    return sum_usage([found])


def _block(foreign: Foreign, format: str) -> JsonObject:
    calls = foreign.calls
    known: JsonObject = {"attempt": 1, "model": foreign.model, "settings": format}
    if calls:
        known |= {"num_turns": len(calls), "turns": pack_turns(calls)}
        known |= {"finish_reason": calls[-1].finish}
        for total in ("model_s", "tool_s", "cost_usd"):
            values = [getattr(each, total) for each in calls]
            known[total] = None if None in values else sum(values)
    known["num_tool_calls"] = len(function_calls(foreign.output))
    known |= foreign.known
    if foreign.error is not None:
        known["finish_reason"] = FAILED
    return {name: value for name, value in known.items() if value is not None}


def number_in(value: Any) -> float | None:
    """A finite number, or None for anything else. A boolean is 1 or 0."""
    if not isinstance(value, (int, float)) or not is_countable(value) or not isfinite(value):
        return None
    return float(value) if isinstance(value, bool) else value


def seconds_between(start: Any, end: Any) -> float | None:
    """Seconds from one time to another; None if one of them is none."""
    try:
        return max(
            0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
        )
    except (TypeError, ValueError):
        return None


def count_in(value: Any) -> int | None:
    """A number of tokens; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def rest_of(given: Mapping[str, Any], *read: str) -> JsonObject:
    """The fields that are not read, without those that are empty."""
    return {
        name: value
        for name, value in given.items()
        if name not in read and value not in (None, "", [], {})
    }
