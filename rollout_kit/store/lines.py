"""What a line of the output files looks like: how it is built, and how it is read back.

Only this module knows the layout of the `rollout` block. Everything else reads a line through the
typed `RolloutInfo`, and the start of a line through `LineHead`.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from ..errors import RolloutError
from ..trajectory import ModelCall, read_turns
from ..types import (
    Failure,
    GroupScore,
    JsonObject,
    Key,
    Outcome,
    Rollout,
    RolloutInfo,
    Task,
    Unverified,
    is_countable,
)
from .arms.arm import arm_of
from .head import BLOCK_DEFAULTS, BLOCK_NAMES, NUMBERS, USAGE
from .kinds import MARK, Kind, mark, mark_as, score_names

OWN_FIELDS = frozenset({*MARK, "rollout", "usage", "reward", "response", "failure", "task_fields"})
"""Names that a line uses itself. A row's own fields of these names move to `task_fields`, and a
verifier's `kind` and `schema` to `verdict_fields` of the `rollout` block."""

OF_NUMBERS = frozenset(NUMBERS)
"""The same names, for fast look-ups."""


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


def count_cached(response: JsonObject) -> int | None:
    """The tokens of a response's prompts that were read from a cache; None if it does not say."""
    usage = response.get("usage")
    details = usage.get("input_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if is_countable(cached) and isinstance(cached, int) else None


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
    own = dict(_without(NOT_OF_ROW, scores))
    if (usd := (line["rollout"].get("user") or {}).get("cost_usd")) is not None:
        own["user_cost_usd"] = usd
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
    """Reward and scores of a rollout's line."""
    names = ("reward", *score_names(line["rollout"]))
    return {name: line[name] for name in names if name in line}


def was_verified(line: Mapping[str, Any]) -> bool:
    """Whether a line, for which `key_of` finds a key, has been through a verifier."""
    return "verifier" in line["rollout"]


def arm_block(line: Mapping[str, Any]) -> JsonObject | None:
    """What a line, for which `key_of` finds a key, records of its arm."""
    return line["rollout"].get("arm")


def turns_of(line: Mapping[str, Any]) -> list[ModelCall]:
    """The model calls that a line, for which `key_of` finds a key, tells one by one."""
    return read_turns(line["rollout"].get("turns"))


def verdict_of(line: Mapping[str, Any]) -> JsonObject | None:
    """The reward of a line and what its verifier set; None if it has no reward."""
    return head_of(line) if line.get("reward") is not None else None


def info_of(line: Mapping[str, Any]) -> RolloutInfo:
    """The typed head of a line for which `key_of` finds a key."""
    block, usage = line["rollout"], line.get("usage") or {}
    scope, arm = block.get("scope", ""), block.get("arm")
    key = Key(block["task_id"], line["agent_ref"]["name"], scope, block["rollout_index"])
    info = RolloutInfo._make(
        (
            key,
            line.get("_ng_task_index", 0),
            *map(block.get, BLOCK_NAMES, BLOCK_DEFAULTS),
            *[usage.get(name) or 0 for name in USAGE],
            score_names(block),
            None if arm is None else arm_of(arm),
        )
    )
    return info if isinstance(info.model, str) else info._replace(model=str(info.model))


class MadeRollout(Rollout):
    """A rollout that a verifier of this process was asked about. `encoded` is its response as JSON,
    until it is written. With the token ids that are usual in training, encoding it again would take
    most of a rollout's CPU time."""

    __slots__ = ("encoded",)

    def __init__(self, info: RolloutInfo, line: JsonObject, encoded: bytes | None) -> None:
        super().__init__(info, line)
        self.encoded = encoded


class WorkerRollout(Rollout):
    """A rollout of a worker: `raw` is the line as the worker wrote it, `figures` are those of its
    record in the index, if the worker has packed them."""

    __slots__ = ("figures", "raw")

    def __init__(self, info: RolloutInfo, head: JsonObject, raw: bytes, figures: bytes) -> None:
        super().__init__(info, head)
        self.raw, self.figures = raw, figures

    @property
    def line(self) -> JsonObject:
        return orjson.loads(self.raw)


def find_encoded(rollout: Rollout) -> bytes | None:
    """The response of a rollout as JSON, if it is at hand."""
    return rollout.encoded if isinstance(rollout, MadeRollout) else None


def find_figures(rollout: Rollout) -> bytes:
    """The figures of a rollout's record in the index, if a worker has packed them."""
    return rollout.figures if isinstance(rollout, WorkerRollout) else b""


def dump_rollout(rollout: Rollout) -> bytes:
    """The line as it is written; TypeError if it is not JSON."""
    if isinstance(rollout, WorkerRollout):
        return rollout.raw
    line = rollout.line
    if (encoded := find_encoded(rollout)) is not None:
        line = {**line, "response": orjson.Fragment(encoded)}
    return dump_line(line)


def rollout_of(
    line: JsonObject,
    group: GroupScore | None = None,
    labels: Iterable[str] = (),
    find_scans: Callable[[Key], tuple[str, ...]] | None = None,
) -> Rollout:
    """A line of the rollouts file, for which `key_of` finds a key."""
    return Rollout(info_of(line), line, group, tuple(labels), find_scans)


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


def build_failure_line(failure: Failure, repro: str) -> JsonObject:
    """The line of a key without a result: last error, every attempt, and the command to repeat
    it."""
    made_with = {"settings": failure.settings, "verifier": failure.verifier}
    known = {name: value for name, value in made_with.items() if value}
    line: JsonObject = {
        **identity("failure", failure.key, failure.task_index),
        "rollout": block_of(failure.key, known),
        "attempt": len(failure.attempts),
        "at": now_text(),
        "failure": failure.attempts[-1],
        "repro": repro,
    }
    if failure.cost_usd is not None:
        line["cost_usd"] = failure.cost_usd
    if len(failure.attempts) > 1:
        line["attempts"] = failure.attempts
    if (answered := failure.answered) is not None:
        line["response"] = answered["response"]
        line["answered"] = {name: value for name, value in answered.items() if name != "response"}
    return line


def failure_of(unverified: Unverified, error: RolloutError) -> Failure:
    """The failure that a response without a verdict is reported as."""
    info, verifier = unverified.info, unverified.verifier
    tried = unverified.line.get("failure") or {"message": error.message}
    return Failure(info.key, info.task_index, error, [tried], None, info.settings, verifier)


STAGES = {
    "/seed_session": "seed",
    "/v1/responses": "agent",
    "/run": "agent",
    "/verify": "verification",
}
"""Route of a step of a rollout → NeMo Gym's name of the step."""


def describe_error(error: RolloutError, elapsed_s: float, waited_for: str = "") -> JsonObject:
    """The `failure` block of one attempt; `waited_for` ends with the route that it waited for. The
    stage of an error between servers is not known."""
    route = waited_for[waited_for.find("/") :] if "/" in waited_for else ""
    found = {
        "class": type(error).__name__,
        "failure_kind": error.failure_kind,
        "stage": "" if error.failure_kind.startswith("transport_") else STAGES.get(route, ""),
        "server": error.server,
        "status": error.status,
        "message": error.message,
        "body": error.body,
        "retryable": error.retryable,
        "terminal": error.terminal,
        "elapsed_s": round(elapsed_s, 3),
        "traceback": error.traceback,
    }
    return {name: value for name, value in found.items() if value != ""}


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that is not a valid task."""

    line: int
    message: str
    text: str


def build_malformed_line(malformed: Malformed, path: str) -> JsonObject:
    """The failure line of an input line that is no task."""
    failure = {"class": "MalformedLine", "message": malformed.message, "body": malformed.text}
    return {
        **mark("malformed"),
        "input": path,
        "line": malformed.line,
        "at": now_text(),
        "failure": {**failure, "retryable": False, "terminal": True},
    }


def dump_line(line: JsonObject) -> bytes:
    """The line as it is written; TypeError if it is not JSON."""
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def refuse_line(outcome: Outcome, error: TypeError) -> Failure:
    """What is recorded instead of an outcome that is not JSON."""
    message = f"the rollout cannot be written as JSON: {error}"
    broken = RolloutError(message, server=outcome.key.agent, retryable=False)
    return Failure(outcome.key, 0, broken, [{"message": message}])
