"""What a line of the output files looks like: how it is built, and how it is read back.

Only this module knows the layout of the `rollout` block. Everything else reads a line through the
typed `RolloutInfo`, and the start of a line through `LineHead`.
"""

import re
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import orjson

from ..errors import OutputError, RolloutError
from ..responses import has_more_brackets
from ..trajectory import ModelCall, read_turns
from ..types import (
    LARGEST,
    Failure,
    GroupScore,
    JsonObject,
    Key,
    Rollout,
    RolloutInfo,
    Task,
    Unverified,
    is_countable,
)
from .arms.arm import arm_of
from .compact import INDEXES, Keys, is_index
from .head import BLOCK_DEFAULTS, BLOCK_NAMES, NUMBERS, USAGE

MARK = ("kind", "schema")
"""Fields that say what a line is, and in which version of this layout it is written."""

SCHEMA = 1

Kind = Literal[
    "rollout", "unverified", "failure", "malformed", "turn", "group", "label", "ack", "run"
]
"""What this version writes into an output and the files beside it."""

KINDS = frozenset(get_args(Kind))

FOREIGN = "foreign"
"""What `kind_of` says of a line of a kind that this program does not write."""

NEWER = "newer"
"""What `kind_of` says of a line that a newer version wrote."""

PRESENT = re.compile(rb'\{"kind":"[a-z]+","schema":%d[,}]' % SCHEMA)
"""The start of a line as this version writes it."""


def mark(kind: Kind) -> JsonObject:
    """The fields with which every line starts."""
    return {"kind": kind, "schema": SCHEMA}


def kind_of(line: Mapping[str, Any], default: str) -> str:
    """One of KINDS, FOREIGN or NEWER. Lines of earlier versions do not say what they are: those
    with a failure are known by their fields, and the others are what their file is meant to hold,
    the `default`."""
    schema, kind = line.get("schema"), line.get("kind")
    if type(schema) is int and isinstance(kind, str):
        if schema > SCHEMA:
            return NEWER
        return kind if kind in KINDS else FOREIGN
    if not isinstance(line.get("failure"), dict):
        return default
    if "rollout" not in line:
        return "malformed"
    return "failure" if "repro" in line or default == "failure" else "unverified"


def mark_as(kind: Kind, line: Mapping[str, Any]) -> JsonObject:
    """The line as one of this kind. In a line of an earlier version, fields of the names in MARK
    are the row's own."""
    if type(line.get("schema")) is int and isinstance(line.get("kind"), str):
        return {**line, "kind": kind}
    own = {name: line[name] for name in MARK if name in line}
    marked = {**mark(kind), **line, **mark(kind)}
    if own:
        marked["task_fields"] = {**line.get("task_fields", {}), **own}
    return marked


def refuse_newer(
    path: Path | str, number: int, line: Mapping[str, Any], *, is_output: bool = True
) -> OutputError:
    """The error about a line that a newer version wrote. `is_output`: whether the command would
    write to its output, and not only read it."""
    remedy = "Use that version"
    if is_output:
        remedy = "Nothing was sent. Use that version, or choose another output_jsonl_fpath"
    return OutputError(
        f"{path}:{number}: this line has schema {line['schema']}, and this version of rollout_kit"
        f" reads schemas up to {SCHEMA}: a newer version wrote it. {remedy}"
    )


OWN_FIELDS = frozenset({*MARK, "rollout", "usage", "reward", "response", "failure", "task_fields"})
"""Names that a line uses itself. A row's own fields of these names move to `task_fields`, and a
verifier's `kind` and `schema` to `verdict_fields` of the `rollout` block."""

OF_NUMBERS = frozenset(NUMBERS)
"""The same names, for fast look-ups."""

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
    return head_of(line) if "reward" in line else None


def score_names(block: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields that the verifier set, by the `rollout` block of a line."""
    return tuple([name for name in block.get("scores", ()) if isinstance(name, str)])


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


DEEPEST = 1_000
"""Levels of JSON that every reader of a line takes."""

SKIPS_DEPTH = sys.version_info >= (3, 12)
"""Whether the decoder takes any number of levels in fields that it skips."""


class LinePlace(NamedTuple):
    """Where a line stands."""

    path: Path
    offset: int


class LineHead(NamedTuple):
    """The key of a line, and the fingerprints of the settings and the verifier that made it."""

    key: Key
    settings: str
    verifier: str


def parse_head(line: Mapping[str, Any]) -> LineHead | None:
    """None if `key_of` finds no key."""
    if (key := key_of(line)) is None:
        return None
    settings, verifier = (line["rollout"].get(name, "") for name in ("settings", "verifier"))
    return LineHead(key, str(settings), verifier if isinstance(verifier, str) else "")


def head_reader() -> Callable[[bytes], LineHead | None]:
    """A function that reads the heads of rollouts only, in a third of the time that parsing whole
    lines takes: msgspec checks the whole line and builds only these fields.

    It returns None for a line that has to be parsed as a whole to be judged.
    """
    from msgspec import Raw, defstruct, json

    reward, index = make_bounded_types()

    name = defstruct("Name", [("name", str)], gc=False)
    usage = defstruct("Usage", [(each, float | None, 0.0) for each in USAGE], gc=False)
    texts = [(each, str, "") for each in ("scope", "settings", "verifier")]
    numbers = [(each, float, 0.0) for each in NUMBERS]
    block = defstruct(
        "Block",
        [("task_id", str), ("rollout_index", index), *texts, ("scores", list, []), *numbers],
        gc=False,
    )
    line = defstruct(
        "Line",
        [
            ("agent_ref", name),
            ("rollout", block),
            ("usage", usage | None, None),
            ("reward", reward, 0.0),
            ("_ng_task_index", index, 0),
            ("kind", str, ""),
            ("schema", int | None, None),
            ("failure", Raw | None, None),
        ],
        gc=False,
    )
    decode = json.Decoder(line).decode

    def head(raw: bytes) -> LineHead | None:
        try:
            check_skipped(raw)
            found: Any = decode(raw)
        except (ValueError, RecursionError):
            return None
        schema = found.schema
        is_marked = found.kind == "rollout" and schema is not None and schema <= SCHEMA
        is_plain = not found.kind and schema is None and found.failure is None
        if not (is_marked or is_plain):
            return None
        own = found.rollout
        key = Key(own.task_id, found.agent_ref.name, own.scope, own.rollout_index)
        return LineHead(key, own.settings, own.verifier)

    return head


def check_skipped(raw: bytes) -> None:
    """ValueError if a line cannot be read as a whole. The decoder of some fields skips the others,
    and checks neither their encoding nor, from Python 3.12 on, their depth."""
    if not raw.isascii():
        raw.decode()
    if SKIPS_DEPTH and has_more_brackets(raw, DEEPEST):
        orjson.loads(raw)


def make_bounded_types() -> tuple[Any, Any]:
    """The types of a reward and of an index in a line, for the decoder."""
    from msgspec import Meta

    reward = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
    return reward, Annotated[int, Meta(ge=INDEXES.start, le=INDEXES.stop - 1)]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Fingerprints of what made a permanent failure; empty if its line does not say."""

    settings: str
    verifier: str
    is_answered: bool

    @classmethod
    def of(cls, row: JsonObject) -> "Refusal":
        block = row["rollout"]
        named = (str(block.get(name, "")) for name in ("settings", "verifier"))
        return cls(*named, is_answered="response" in row)


@dataclass(slots=True)
class Contents:
    """What the files held when they were opened."""

    done: Keys = field(default_factory=Keys)
    pending: dict[Key, LinePlace] = field(default_factory=dict)
    """Key that is not done → its last line without a verdict."""
    refused: set[Key] = field(default_factory=set)
    """Keys that failed permanently and are not tried again, as `keep_refused` decides."""
    refusals: dict[Key, list[Refusal]] = field(default_factory=dict)
    malformed: set[tuple[str, int]] = field(default_factory=set)
    """(input, line) of the malformed lines that the failures file already names."""
    settings: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(agent, scope) → fingerprints of the settings that its rollouts were generated with."""
    verifiers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(agent, fingerprint of its verifier) → number of lines."""
    foreign: int = 0
    """Lines of the main file from other programs, or unreadable. They are left as they are."""
    size: int = 0
    """Bytes of the main file."""
    idle: set[int] = field(default_factory=set)
    """Offsets in the main file of lines that do not count: foreign ones, repeated keys, and those
    that are no rollouts."""
    checks: "array[int]" = field(default_factory=lambda: array("I"))
    """CRC-32 of the first lines that count: those that an index told, and that were not read. The
    metrics compare them after the first requests, to find an edit that keeps size and time."""

    def agents(self) -> list[str]:
        """Those of the rollouts, and of the responses that wait for a verdict."""
        names = {agent for agent, _ in self.done.numbers()}
        return sorted(names | {key.agent for key in self.pending})

    def take(self, head: LineHead) -> bool:
        """Count a rollout; False if its key is there already."""
        if not self.done.add(head.key):
            return False
        self.keep_settings(head)
        if head.verifier:
            self.verifiers[head.key.agent, head.verifier] += 1
        return True

    def take_many(
        self, kind: tuple[str, str, int], tasks: Collection[int], settings: str, verifier: str
    ) -> bool:
        """Count rollouts by (agent, scope, rollout index) and the numbers of their tasks' ids;
        False if a key is there already."""
        self.settings.setdefault(kind[:2], set()).add(settings)
        if verifier:
            self.verifiers[kind[0], verifier] += len(tasks)
        return self.done.add_numbers(kind, tasks)

    def keep_refused(self, present: Callable[[Key], tuple[str, str]]) -> None:
        """Keep the refusals that were made with the present settings and verifier, whose
        fingerprints `present` gives."""

        def stands(key: Key, refusal: Refusal) -> bool:
            settings, verifier = present(key)
            is_paid = refusal.is_answered and key not in self.pending
            return refusal.settings in ("", settings) and (
                refusal.verifier in ("", verifier) or is_paid
            )

        self.refused = {
            key
            for key, refusals in self.refusals.items()
            if any(stands(key, refusal) for refusal in refusals)
        }

    def drop_done(self) -> None:
        """Forget responses and refusals of keys that are done."""
        self.pending = {key: at for key, at in self.pending.items() if key not in self.done}
        self.refusals = {key: each for key, each in self.refusals.items() if key not in self.done}
        self.refused = set(self.refusals)

    def keep_settings(self, head: LineHead) -> None:
        which = head.key[1:3]
        if which not in self.settings:
            self.settings[which] = set()
        self.settings[which].add(head.settings)


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


def describe_error(error: RolloutError, elapsed_s: float) -> JsonObject:
    """The `failure` block of one attempt."""
    found = {
        "class": type(error).__name__,
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
