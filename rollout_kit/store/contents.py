"""What the files of an output hold when a run opens them: which keys are done, pending or refused,
and the settings and verifiers that made them.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson

from ..responses import has_more_brackets
from ..types import LARGEST, JsonObject, Key
from .compact import INDEXES, Keys
from .foreign.versions import SCHEMA
from .lines import NUMBERS, USAGE, key_of

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


def head_of(line: Mapping[str, Any]) -> LineHead | None:
    """None if `key_of` finds no key."""
    if (key := key_of(line)) is None:
        return None
    settings, verifier = (line["rollout"].get(name, "") for name in ("settings", "verifier"))
    return LineHead(key, str(settings), verifier if isinstance(verifier, str) else "")


def head_reader() -> Callable[[bytes], LineHead | None]:
    """A function that reads the heads of rollouts only, in a third of the time that parsing whole
    lines takes.

    It returns None for a line that has to be parsed as a whole to be judged.
    """
    from msgspec import Raw, defstruct, json  # needed only to resume a run

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
    """CRC-32 of the first lines that count: those that an index told, and that were not read."""

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
