"""What a line of the output files looks like: how it is built, and how it is read back.

Only this module knows the layout of the `rollout` block. Everything else reads a line through the
typed `RolloutInfo`.
"""

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any

from ..types import (
    GroupScore,
    JsonObject,
    Key,
    Rollout,
    RolloutInfo,
    Task,
    is_countable,
)
from .arms.arm import arm_of
from .compact import is_index
from .foreign.versions import MARK, Kind, mark, mark_as

OWN_FIELDS = frozenset({*MARK, "rollout", "usage", "reward", "response", "failure", "task_fields"})
"""Names that a line uses itself. A row's own fields of these names move to `task_fields`, and a
verifier's `kind` and `schema` to `verdict_fields` of the `rollout` block."""

NUMBERS = (
    "duration_s",
    "model_s",
    "tool_s",
    "verify_s",
    "queue_s",
    "rate_limit_s",
    "retry_s",
    "first_turn_s",
    "num_turns",
    "num_tool_calls",
    "cost_usd",
)
"""Fields of the `rollout` block that must be numbers."""

OF_NUMBERS = frozenset(NUMBERS)
"""The same names, for fast look-ups."""

OF_HEAD = ("started_at", "finish_reason")
"""Fields of the `rollout` block that the head of a rollout has, and its `RolloutInfo` lacks."""

USAGE = ("input_tokens", "output_tokens", "total_tokens")

A_NUMBER = frozenset({int, float, bool})
"""Types of JSON numbers as Python reads them; JSON numbers are finite."""

A_NUMBER_OR_NULL = A_NUMBER | {type(None)}

OF_VERDICT = frozenset({"scores", "verifier", "verify_s", "replay_differences", "verdict_fields"})
"""Fields of the `rollout` block that a new verdict replaces."""

BOOKKEEPING = frozenset({"agent_ref", "_ng_task_index", "_ng_rollout_index"})

NOT_OF_ROW = OWN_FIELDS | BOOKKEEPING
"""Names at the top of a line that are neither a row's fields nor a verifier's."""


def identity(kind: Kind, key: Key, task_index: int) -> JsonObject:
    """The fields with which the line of a key starts."""
    return {
        **mark(kind),
        "agent_ref": {"name": key.agent},
        "_ng_task_index": task_index,
        "_ng_rollout_index": key.rollout_index,
    }


def block_of(key: Key, known: Mapping[str, Any]) -> JsonObject:
    """The `rollout` block: the rest of the key, and what is known about the rollout."""
    return {
        "task_id": key.task_id,
        "scope": key.scope,
        "rollout_index": key.rollout_index,
        **known,
    }


def build_line(task: Task, key: Key, response: JsonObject, known: Mapping[str, Any]) -> JsonObject:
    """The line of a response without a verdict; `known` goes into its `rollout` block."""
    line: JsonObject = {
        **identity("unverified", key, task.task_index),
        "usage": response.get("usage"),
        "rollout": block_of(key, known),
        **_without(NOT_OF_ROW, task.row),
        "response": response,
    }
    if not OWN_FIELDS.isdisjoint(task.row):
        line["task_fields"] = {name: task.row[name] for name in task.row if name in OWN_FIELDS}
    return line


def _without(names: frozenset[str], fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields without these; often it has none of them."""
    if names.isdisjoint(fields):
        return fields
    return {name: value for name, value in fields.items() if name not in names}


def sound_stats(stats: Mapping[str, Any]) -> JsonObject:
    """The statistics of a session that can be stored in the `rollout` block, times rounded to
    microseconds."""
    found: JsonObject = {}
    for name, value in stats.items():
        if name not in OF_NUMBERS or is_countable(value):
            found[name] = micros(value) if isinstance(value, float) else value
    return found


def with_verdict(
    line: JsonObject, scores: Mapping[str, Any], known: Mapping[str, Any]
) -> JsonObject:
    """The line with its reward and scores in front.

    `known` goes into its `rollout` block, where None removes a value; `verify_s` is added to
    `duration_s`. A row's field that the verifier overwrote is kept under `task_fields`.
    """
    own = _without(NOT_OF_ROW, scores)
    block = {**line["rollout"], **known, "scores": list(own)}
    if not scores.keys().isdisjoint(MARK):
        block["verdict_fields"] = {name: scores[name] for name in MARK if name in scores}
    if (verify_s := known.get("verify_s")) is not None:
        block["duration_s"] = micros(block.get("duration_s", 0) + verify_s)
    block = {name: value for name, value in block.items() if value is not None}
    start = mark("rollout")
    verified = {
        **start,
        "agent_ref": line["agent_ref"],
        "_ng_task_index": line["_ng_task_index"],
        "_ng_rollout_index": line["_ng_rollout_index"],
        "reward": scores["reward"],
        **own,
        **line,
        **own,
        **start,
        "rollout": block,
    }
    if not line.keys().isdisjoint(own):
        replaced = {name: line[name] for name in own if name in line}
        verified["task_fields"] = {**line.get("task_fields", {}), **replaced}
    return verified


def without_verdict(line: Mapping[str, Any]) -> JsonObject:
    """The line as it was before verification, with the row's overwritten fields restored."""
    line = mark_as("unverified", line)
    block, replaced = line["rollout"], line.get("task_fields", {})
    scores = frozenset(score_names(block))
    bare = {
        name: value
        for name, value in line.items()
        if name not in ("reward", "failure", "task_fields") and name not in scores
    }
    bare |= {name: value for name, value in replaced.items() if name in scores}
    if kept := {name: value for name, value in replaced.items() if name not in scores}:
        bare["task_fields"] = kept
    bare["rollout"] = {name: value for name, value in block.items() if name not in OF_VERDICT}
    if "duration_s" in block:
        generated_s = block["duration_s"] - block.get("verify_s", 0)
        bare["rollout"]["duration_s"] = micros(generated_s)
    return bare


def row_of(line: Mapping[str, Any]) -> JsonObject:
    """The input row of a line, as it was sent."""
    scores = line.get("rollout", {}).get("scores", ())
    row = {
        name: value
        for name, value in line.items()
        if name not in OWN_FIELDS and name not in BOOKKEEPING and name not in scores
    }
    return {**row, **line.get("task_fields", {})}


def head_of(line: Mapping[str, Any]) -> JsonObject:
    """Reward and scores of a rollout's line, and what of its block `info_of` leaves out."""
    block = line["rollout"]
    head = {name: line[name] for name in ("reward", *score_names(block)) if name in line}
    return {**head, "rollout": {name: block[name] for name in OF_HEAD if name in block}}


def score_names(block: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields that the verifier set, by the `rollout` block of a line."""
    return tuple([name for name in block.get("scores", ()) if isinstance(name, str)])


def info_of(line: Mapping[str, Any]) -> RolloutInfo:
    """The typed head of a line for which `key_of` finds a key."""
    block, usage = line["rollout"], line.get("usage") or {}
    get, used = block.get, usage.get
    key = Key(block["task_id"], line["agent_ref"]["name"], get("scope", ""), block["rollout_index"])
    return RolloutInfo(
        key,
        line.get("_ng_task_index", 0),
        get("settings", ""),
        get("verifier", ""),
        model if isinstance(model := get("model", ""), str) else str(model),
        get("attempt", 1),
        get("duration_s"),
        get("queue_s"),
        get("model_s"),
        get("tool_s"),
        get("verify_s"),
        get("rate_limit_s"),
        get("retry_s"),
        get("first_turn_s"),
        get("num_turns"),
        get("num_tool_calls"),
        get("cost_usd"),
        used("input_tokens") or 0,
        used("output_tokens") or 0,
        used("total_tokens") or 0,
        score_names(block),
        get("replay_differences", 0),
        arm_of(arm) if (arm := get("arm")) is not None else None,
    )


def rollout_of(
    line: JsonObject, group: GroupScore | None = None, labels: Iterable[str] = ()
) -> Rollout:
    """A line of the rollouts file, for which `key_of` finds a key."""
    return Rollout(info_of(line), line, group, tuple(labels))


def key_of(line: Mapping[str, Any]) -> Key | None:
    """The key of a line; None if the line has no sound identity, usage and numbers."""
    block, agent = line.get("rollout"), line.get("agent_ref")
    if not isinstance(block, dict) or not isinstance(agent, dict):
        return None
    task_id, name = block.get("task_id"), agent.get("name")
    scope, index = block.get("scope", ""), block.get("rollout_index")
    if not (isinstance(task_id, str) and isinstance(name, str)):
        return None
    if not (isinstance(scope, str) and is_index(index)):
        return None
    usage = line.get("usage") or {}
    sound = (
        is_countable(line.get("reward", 0))
        and isinstance(usage, dict)
        and is_index(line.get("_ng_task_index", 0))
        and isinstance(block.get("scores", []), list)
        and _all_are(A_NUMBER_OR_NULL, usage, USAGE)
        and _all_are(A_NUMBER, block, NUMBERS)
    )
    return Key(task_id, name, scope, index) if sound else None


def _all_are(kinds: frozenset[type], values: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether those of the names that are present have values of these types."""
    return kinds.issuperset(map(type, map(values.get, names, repeat(0))))


def micros(seconds: float) -> float:
    """Seconds as the files write them, rounded to microseconds; `round` takes three times as
    long."""
    return int(seconds * 1e6 + 0.5) / 1e6 if 0 <= seconds < 1e9 else round(seconds, 6)


def now_text() -> str:
    """The time in UTC, as the files write it."""
    now = time.time_ns() // 1_000_000
    return f"{_second_text(now // 1000)}.{now % 1000:03d}Z"


@lru_cache(maxsize=1)
def _second_text(second: int) -> str:
    """Cached because thousands of rollouts share a second."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
