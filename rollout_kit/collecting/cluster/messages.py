"""What driver and workers tell each other: attempts, outcomes, calls.

A message is a line of JSON. The lines of rollouts follow it as they go into the output, each behind
the figures of its index record: the driver parses none of them, so the length of a rollout costs it
next to nothing. An outcome keeps everything that a run in one process would have of it, with the
type of its error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import orjson

from ...errors import RolloutError, from_wire
from ...session import Spent
from ...store.index import FIGURES, pack_own
from ...store.lines import WorkerRollout, dump_rollout, head_of, info_of
from ...types import (
    ArmInfo,
    Attempt,
    Failure,
    JsonObject,
    Key,
    Outcome,
    Rollout,
    RolloutInfo,
    Task,
    Unverified,
)


def encode_leases(leases: Iterable[tuple[int, Attempt | JsonObject]]) -> JsonObject:
    """Numbers of leases, with their attempts or calls. A task of several attempts is sent once."""
    tasks: dict[int, Task] = {}
    found = list[JsonObject]()
    for number, given in leases:
        if isinstance(given, Attempt):
            tasks[at := id(given.task)] = given.task
            found.append({"lease": number, "task": at, "attempt": _encode_attempt(given)})
        else:
            found.append({"lease": number, "call": given})
    return {"leases": found, "tasks": [(at, list(task)) for at, task in tasks.items()]}


def decode_leases(found: Mapping[str, Any]) -> Iterator[tuple[int, Attempt | JsonObject]]:
    """What `encode_leases` was given."""
    tasks = {at: Task(*task) for at, task in found["tasks"]}
    for lease in found["leases"]:
        if (call := lease.get("call")) is not None:
            yield lease["lease"], call
        else:
            yield lease["lease"], _decode_attempt(lease["attempt"], tasks[lease["task"]])


def encode_attempt(attempt: Attempt) -> JsonObject:
    """An attempt, with its task."""
    return {"task": list(attempt.task), **_encode_attempt(attempt)}


def decode_attempt(found: Mapping[str, Any]) -> Attempt:
    """What `encode_attempt` was given."""
    return _decode_attempt(found, Task(*found["task"]))


def _encode_attempt(attempt: Attempt) -> JsonObject:
    found: JsonObject = {"key": list(attempt.key)}
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
    for name in ("redraws", "asked", "times_aside"):
        if value := getattr(attempt, name):
            found[name] = value
    return found


def _decode_attempt(found: Mapping[str, Any], task: Task) -> Attempt:
    return Attempt(
        Key(*found["key"]),
        task,
        stored=found.get("stored"),
        number=found.get("number", 1),
        regenerated=found.get("regenerated", False),
        turns=found.get("turns", ()),
        arm=found.get("arm"),
        redraws=found.get("redraws", 0),
        asked=found.get("asked", ""),
        times_aside=found.get("times_aside", 0),
    )


class Event(NamedTuple):
    """What a worker reports, as JSON; and what follows the message: the figures of a rollout, which
    may be empty, and its line."""

    told: bytes
    more: bytes = b""

    @property
    def size(self) -> int:
        return len(self.told) + len(self.more)


def write_message(head: bytes, events: Sequence[Event]) -> bytes:
    """A message: the JSON object `head`, with events."""
    told = b",".join(event.told for event in events)
    return b"".join([head[:-1], b',"events":[', told, b"]}\n", *(event.more for event in events)])


def read_message(raw: bytes) -> JsonObject:
    """The JSON object of a message; an event of a rollout has its line as `raw`. ValueError or
    TypeError if it is no message."""
    at = raw.find(b"\n") + 1
    found = orjson.loads(memoryview(raw)[:at] if at else raw)
    for event in found.get("events", ()):
        if size := event.get("size"):
            end = at + event["packed"]
            event["figures"], event["raw"] = raw[at:end], raw[end : end + size]
            at = end + size
            if len(event["figures"]) not in (0, FIGURES.size):
                raise ValueError("the figures of a rollout are incomplete")
            if len(event["raw"]) != size or event["raw"].find(b"\n") != size - 1:
                raise ValueError("a rollout is not one line of the size that its event says")
    return found


def write_event(lease: int, outcome: Outcome, **about: Any) -> Event:
    """The event with which an attempt ends; TypeError if the outcome is not JSON."""
    told = {"lease": lease, **encode_outcome(outcome), **about}
    if not isinstance(outcome, Rollout):
        return Event(orjson.dumps(told))
    line = dump_rollout(outcome)
    figures = pack_own(line, outcome)
    return Event(orjson.dumps({**told, "packed": len(figures), "size": len(line)}), figures + line)


def encode_outcome(outcome: Outcome) -> JsonObject:
    match outcome:
        case Rollout(info=info, line=line):
            return {"kind": "rollout", "info": encode_info(info), "head": head_of(line)}
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


def decode_outcome(found: Mapping[str, Any], key: Key) -> Outcome:
    """The outcome of an event about the attempt at a key; KeyError, TypeError or ValueError if it
    is none."""
    match found["kind"]:
        case "rollout":
            info, raw = decode_info(found["info"], key), found["raw"]
            return WorkerRollout(info, found["head"], raw, found.get("figures", b""))
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


def encode_info(info: RolloutInfo) -> list[Any]:
    """All of it but the key, which the driver knows."""
    found: list[Any] = list(info)
    found[KEY], found[ARM] = None, info.arm and list(info.arm)
    return found


def decode_info(found: list[Any], key: Key) -> RolloutInfo:
    """What `encode_info` has made; the list is used up."""
    found[KEY], found[SCORES] = key, tuple(found[SCORES])
    if (arm := found[ARM]) is not None:
        found[ARM] = ArmInfo(*arm)
    return RolloutInfo._make(found)


KEY, SCORES, ARM = map(RolloutInfo._fields.index, ("key", "scores", "arm"))


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
    return list(astuple(spent))


def add_spent(found: list[Any], to: Spent) -> None:
    """Add what `encode_spent` has made."""
    to.add(Spent(*found))
