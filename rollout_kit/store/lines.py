"""What a line of the journal looks like, and how to read one back."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

from ..errors import RolloutError
from ..responses import function_calls
from ..types import Failure, JsonObject, Key, Task
from .tasks import Malformed

OWN_FIELDS = frozenset({"rollout", "usage", "reward", "response", "failure", "task_fields"})
"""Names that a line needs for itself: a row's own fields of these names move to `task_fields`."""

TIMES = ("duration_s", "model_s", "tool_s", "verify_s", "queue_s")
NUMBERS = (
    *TIMES,
    "rate_limit_s",
    "retry_s",
    "first_turn_s",
    "num_turns",
    "num_tool_calls",
    "cost_usd",
)
"""Of the `rollout` block: what must be a number."""

USAGE = ("input_tokens", "output_tokens", "total_tokens")

A_NUMBER = frozenset({int, float, bool})
"""What JSON has as a number: it knows none that is not finite."""

A_NUMBER_OR_NULL = A_NUMBER | {type(None)}

OF_VERDICT = frozenset({"scores", "verifier", "verify_s", "replay_differences"})
"""Of the `rollout` block: what belongs to its verdict, and goes with it."""

BOOKKEEPING = frozenset({"agent_ref", "_ng_task_index", "_ng_rollout_index"})


def answered_line(
    task: Task, key: Key, response: JsonObject, rollout: Mapping[str, Any]
) -> JsonObject:
    """A rollout's line without its verdict; `rollout` is the block of what we know about it."""
    row = task.row
    own = {name: value for name, value in row.items() if name in OWN_FIELDS}
    line: JsonObject = {
        "agent_ref": {"name": key.agent},
        "_ng_task_index": task.task_index,
        "_ng_rollout_index": key.rollout_index,
        "usage": response.get("usage"),
        "rollout": {
            "task_id": key.task_id,
            "scope": key.scope,
            "rollout_index": key.rollout_index,
            **rollout,
        },
        **{
            name: value
            for name, value in row.items()
            if name not in OWN_FIELDS and name not in BOOKKEEPING
        },
        "response": response,
    }
    if own:
        line["task_fields"] = own
    return line


def row_of(line: Mapping[str, Any]) -> JsonObject:
    """The input row that a line came from, as it was sent."""
    row = {name: value for name, value in line.items() if name not in OWN_FIELDS | BOOKKEEPING}
    scores = line.get("rollout", {}).get("scores", ())
    for name in scores:
        row.pop(name, None)
    return {**row, **line.get("task_fields", {})}


def key_of(line: Mapping[str, Any]) -> Key | None:
    """The key of a line; None for a line that is not one of ours, or no longer is."""
    rollout, agent = line.get("rollout"), line.get("agent_ref")
    if not isinstance(rollout, dict) or not isinstance(agent, dict):
        return None
    task_id, name = rollout.get("task_id"), agent.get("name")
    scope, index = rollout.get("scope", ""), rollout.get("rollout_index")
    if not (isinstance(task_id, str) and isinstance(name, str)):
        return None
    if not (isinstance(scope, str) and isinstance(index, int)):
        return None
    usage = line.get("usage") or {}
    sound = (
        isinstance(line.get("reward", 0), (int, float))
        and isinstance(usage, dict)
        and isinstance(line.get("_ng_task_index", 0), int)
        and isinstance(rollout.get("scores", []), list)
        and _all_are(A_NUMBER_OR_NULL, usage, USAGE)
        and _all_are(A_NUMBER, rollout, NUMBERS)
    )
    return Key(task_id, name, scope, index) if sound else None


class Head(NamedTuple):
    """Whose rollout a line is, and the fingerprints of what it was made with."""

    key: Key
    settings: str
    verifier: str


def head_of(line: Mapping[str, Any]) -> Head | None:
    """None for a line that is not one of ours."""
    if (key := key_of(line)) is None:
        return None
    settings, verifier = (line["rollout"].get(name, "") for name in ("settings", "verifier"))
    return Head(key, str(settings), verifier if isinstance(verifier, str) else "")


def head_reader() -> Callable[[bytes], Head | None]:
    """Reads heads only, in a third of the time that whole lines take: nothing is made of the rest.

    None for a line that has to be looked at as a whole before anything is said of it.
    """
    from msgspec import DecodeError, defstruct, json  # only who goes on with a run needs it

    name = defstruct("Name", [("name", str)], gc=False)
    usage = defstruct("Usage", [(each, float | None, 0.0) for each in USAGE], gc=False)
    texts = [(each, str, "") for each in ("scope", "settings", "verifier")]
    numbers = [(each, float, 0.0) for each in NUMBERS]
    block = defstruct(
        "Block",
        [("task_id", str), ("rollout_index", int), *texts, ("scores", list, []), *numbers],
        gc=False,
    )
    line = defstruct(
        "Line",
        [
            ("agent_ref", name),
            ("rollout", block),
            ("usage", usage | None, None),
            ("reward", float, 0.0),
            ("_ng_task_index", int, 0),
        ],
        gc=False,
    )
    decode = json.Decoder(line).decode

    def head(raw: bytes) -> Head | None:
        try:
            if not raw.isascii():
                raw.decode()  # what is passed over is not looked at so closely
            found: Any = decode(raw)
        except (DecodeError, UnicodeDecodeError):
            return None
        own = found.rollout
        key = Key(own.task_id, found.agent_ref.name, own.scope, own.rollout_index)
        return Head(key, own.settings, own.verifier)

    return head


def _all_are(kinds: frozenset[type], values: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """Of the names that are there."""
    return kinds.issuperset(map(type, map(values.get, names, repeat(0))))


def is_sound(name: str, value: Any) -> bool:
    """Whether a field of the `rollout` block can be worked with, whoever told it."""
    return name not in NUMBERS or (isinstance(value, (float, int)) and math.isfinite(value))


def scores_of(request: Mapping[str, Any], verdict: Mapping[str, Any]) -> JsonObject:
    """What the verifier set: fields that the request had not, or had otherwise."""
    missing = object()
    return {
        name: value
        for name, value in verdict.items()
        if name not in ("responses_create_params", "response")
        and request.get(name, missing) != value
    }


def with_verdict(
    line: JsonObject, scores: Mapping[str, Any], verify: Mapping[str, Any]
) -> JsonObject:
    """The line with its reward and scores in front, and what is known about the verification.

    A row's field that the verifier wrote over is kept under `task_fields`.
    """
    own = {
        name: value
        for name, value in scores.items()
        if name not in OWN_FIELDS and name not in BOOKKEEPING
    }
    rollout = {**line["rollout"], **verify, "scores": list(own)}
    head = {name: line[name] for name in ("agent_ref", "_ng_task_index", "_ng_rollout_index")}
    verified = {**head, "reward": scores["reward"], **own, **line, **own, "rollout": rollout}
    if replaced := {name: line[name] for name in own if name in line}:
        verified["task_fields"] = {**line.get("task_fields", {}), **replaced}
    return verified


def without_verdict(line: Mapping[str, Any]) -> JsonObject:
    """The line as it was before it was verified: what the verifier set is gone, and what it wrote
    over is back."""
    rollout, replaced = line["rollout"], line.get("task_fields", {})
    scores = frozenset(rollout.get("scores", ()))
    bare = {
        name: value
        for name, value in line.items()
        if name not in ("reward", "failure", "task_fields") and name not in scores
    }
    bare |= {name: value for name, value in replaced.items() if name in scores}
    if kept := {name: value for name, value in replaced.items() if name not in scores}:
        bare["task_fields"] = kept
    block = {name: value for name, value in rollout.items() if name not in OF_VERDICT}
    if "duration_s" in rollout:
        block["duration_s"] = round(rollout["duration_s"] - rollout.get("verify_s", 0), 6)
    return {**bare, "rollout": block}


def failure_line(failure: Failure, repro: str, made_with: Mapping[str, str]) -> JsonObject:
    """A key without result in this run: the last error, every attempt, and the command to repeat
    it. `made_with`: the fingerprints of its `settings` and its `verifier`."""
    key, last = failure.key, failure.attempts[-1]
    line: JsonObject = {
        "agent_ref": {"name": key.agent},
        "_ng_task_index": failure.task_index,
        "_ng_rollout_index": key.rollout_index,
        "rollout": {
            "task_id": key.task_id,
            "scope": key.scope,
            "rollout_index": key.rollout_index,
            **{name: value for name, value in made_with.items() if value},
        },
        "attempt": len(failure.attempts),
        "at": now_text(),
        "failure": last,
        "repro": repro,
    }
    if failure.cost_usd is not None:
        line["cost_usd"] = failure.cost_usd
    if len(failure.attempts) > 1:
        line["attempts"] = failure.attempts
    if (answered := failure.error.answered) is not None:
        line["response"] = answered["response"]
        line["answered"] = {name: value for name, value in answered.items() if name != "response"}
    return line


def tried_block(error: RolloutError, elapsed_s: float) -> JsonObject:
    """The `failure` block of one try."""
    found = {
        "class": type(error).__name__,
        "server": error.server,
        "status": error.status,
        "message": error.message,
        "body": error.body,
        "retryable": error.retryable,
        "terminal": error.terminal,
        "elapsed_s": round(elapsed_s, 3),
    }
    return {name: value for name, value in found.items() if value != ""}


def malformed_line(malformed: Malformed, path: str) -> JsonObject:
    """An input line that is no task."""
    failure = {"class": "MalformedLine", "message": malformed.message, "body": malformed.text}
    return {
        "input": path,
        "line": malformed.line,
        "at": now_text(),
        "failure": {**failure, "retryable": False, "terminal": True},
    }


def counted_calls(response: Mapping[str, Any]) -> int:
    return len(function_calls(response.get("output") or ()))


def now_text() -> str:
    """The time in UTC, as the files write it."""
    now = time.time_ns() // 1_000_000
    return f"{_second_text(now // 1000)}.{now % 1000:03d}Z"


@lru_cache(maxsize=1)
def _second_text(second: int) -> str:
    """Asked for each rollout, and the same for thousands of them."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
