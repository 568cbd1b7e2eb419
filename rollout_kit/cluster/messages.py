"""What driver and workers tell each other, as JSON: attempts, outcomes, calls.

An outcome keeps everything that a run in one process would have of it, with the type of its error.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import RolloutError, from_wire
from ..session import Spent
from ..store.lines import info_of
from ..types import (
    Attempt,
    Failure,
    JsonObject,
    Key,
    Outcome,
    Rollout,
    Task,
    Unverified,
)


def encode_attempt(attempt: Attempt) -> JsonObject:
    found: JsonObject = {"key": list(attempt.key), "task": list(attempt.task)}
    if attempt.stored is not None:
        found["stored"] = attempt.stored
    if attempt.number != 1:
        found["number"] = attempt.number
    if attempt.regenerated:
        found["regenerated"] = True
    if attempt.turns:
        found["turns"] = list(attempt.turns)
    if attempt.arm is not None:
        found["arm"] = attempt.arm
    return found


def decode_attempt(found: Mapping[str, Any]) -> Attempt:
    return Attempt(
        Key(*found["key"]),
        Task(*found["task"]),
        stored=found.get("stored"),
        number=found.get("number", 1),
        regenerated=found.get("regenerated", False),
        turns=found.get("turns", ()),
        arm=found.get("arm"),
    )


def encode_outcome(outcome: Outcome) -> JsonObject:
    match outcome:
        case Rollout(line=line):
            return {"kind": "rollout", "line": line}
        case Unverified():
            return {"kind": "unverified", **encode_unverified(outcome)}
        case Failure():
            return {
                "kind": "failure",
                "key": list(outcome.key),
                "task_index": outcome.task_index,
                "error": encode_error(outcome.error),
                "attempts": outcome.attempts,
                "cost_usd": outcome.cost_usd,
                "settings": outcome.settings,
                "verifier": outcome.verifier,
                "answered": outcome.answered,
            }


def decode_outcome(found: Mapping[str, Any]) -> Outcome:
    """The outcome of an event; KeyError, TypeError or ValueError if it is none."""
    match found["kind"]:
        case "rollout":
            return Rollout(info_of(found["line"]), found["line"])
        case "unverified":
            return decode_unverified(found)
        case "failure":
            return Failure(
                Key(*found["key"]),
                found["task_index"],
                decode_error(found["error"]),
                found["attempts"],
                found["cost_usd"],
                settings=found["settings"],
                verifier=found["verifier"],
                answered=found["answered"],
            )
    raise ValueError(f"no outcome is called {found['kind']!r}")


def encode_unverified(unverified: Unverified) -> JsonObject:
    error = unverified.error
    return {
        "line": unverified.line,
        "verifier": unverified.verifier,
        "error": None if error is None else encode_error(error),
    }


def decode_unverified(found: Mapping[str, Any]) -> Unverified:
    error = None if found["error"] is None else decode_error(found["error"])
    return Unverified(info_of(found["line"]), found["line"], error, found["verifier"])


def encode_error(error: RolloutError) -> JsonObject:
    return error.to_wire()


def decode_error(found: JsonObject) -> RolloutError:
    return from_wire("", 500, found, "")


def encode_spent(spent: Spent) -> list[float]:
    return [spent.calls, spent.tokens, spent.usd, spent.unpriced]


def decode_spent(found: list[Any]) -> Spent:
    return Spent(*found)
