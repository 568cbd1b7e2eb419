"""Who saw a line stand whole remembers it, and says so when it is there no more."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from ..store.files import OutputPaths
from ..store.lines import key_of
from ..types import Key
from .findings import Finding, Invariant


@dataclass(slots=True)
class Witness:
    """Looks at an output again and again. A rollout's line must stay as it was, byte for byte; a
    parked response may leave its file only for another one."""

    paths: OutputPaths
    looks: int = 0
    lines: list[bytes] = field(default_factory=list)
    """A digest of every line of the main file."""
    keys: list[Key | None] = field(default_factory=list)
    parked: set[Key] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def look(self) -> None:
        """Compare with the last look, and remember what is new."""
        self.looks += 1
        # in the order in which they are written: what leaves one file is in a later one already
        parked = {key for raw in _whole(self.paths.unverified) if (key := _key_of(raw))}
        self._look_at_rollouts()
        settled = {*self.keys, *(_key_of(raw) for raw in _whole(self.paths.failures))}
        gone = self.parked - parked - settled
        self.findings += [
            Finding(
                Invariant.KEPT,
                "its response was on disk, and is no longer",
                key,
                self.paths.unverified,
            )
            for key in sorted(gone)
        ]
        self.parked = (self.parked | parked) - gone - settled

    def _look_at_rollouts(self) -> None:
        path = self.paths.main
        whole = _whole(path)
        for number, raw in enumerate(whole[: len(self.lines)]):
            if (digest := _digest(raw)) != self.lines[number]:
                what = "its line was whole, and is another now"
                self._found(what, number)
                self.lines[number] = digest
        for number in range(len(whole), len(self.lines)):
            self._found("its line was whole, and is gone", number)
        del self.lines[len(whole) :], self.keys[len(whole) :]
        for raw in whole[len(self.lines) :]:
            self.lines.append(_digest(raw))
            self.keys.append(_key_of(raw))

    def _found(self, what: str, number: int) -> None:
        found = Finding(Invariant.KEPT, what, self.keys[number], self.paths.main, number + 1)
        self.findings.append(found)


def _whole(path: Path) -> list[bytes]:
    """The lines that are complete, without what stands after the last newline."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=8).digest()


def _key_of(raw: bytes) -> Key | None:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return key_of(row) if isinstance(row, dict) else None
