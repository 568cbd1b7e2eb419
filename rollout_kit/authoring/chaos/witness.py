"""Detect lines of an output that change or disappear between looks."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from ...reading import parse_line
from ...store.files import OutputPaths
from ...store.kinds import key_of
from ...types import Key
from .findings import Finding, Invariant


@dataclass(slots=True)
class Witness:
    """Remembers the lines of an output. A rollout's line must never change; an unverified response
    may only move to another file."""

    paths: OutputPaths
    looks: int = 0
    lines: list[bytes] = field(default_factory=list)
    """Digests of the lines of the main file."""
    keys: list[Key | None] = field(default_factory=list)
    parked: set[Key] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def look(self) -> None:
        """Compare the files with the last look, and remember new lines."""
        self.looks += 1
        # read in the order of writing: a response is in the next file before it leaves this one
        parked = {key for raw in _read_lines(self.paths.unverified) if (key := _read_key(raw))}
        self._compare_rollouts()
        settled = {*self.keys, *(_read_key(raw) for raw in _read_lines(self.paths.failures))}
        gone = self.parked - parked - settled
        self.findings += [
            Finding(
                Invariant.KEPT,
                "its response was on disk and is missing now",
                key,
                self.paths.unverified,
            )
            for key in sorted(gone)
        ]
        self.parked = (self.parked | parked) - gone - settled

    def _compare_rollouts(self) -> None:
        path = self.paths.main
        whole = _read_lines(path)
        for number, raw in enumerate(whole[: len(self.lines)]):
            if (digest := _compute_digest(raw)) != self.lines[number]:
                what = "its line has changed"
                self._record(what, number)
                self.lines[number] = digest
        for number in range(len(whole), len(self.lines)):
            self._record("its line has disappeared", number)
        del self.lines[len(whole) :], self.keys[len(whole) :]
        for raw in whole[len(self.lines) :]:
            self.lines.append(_compute_digest(raw))
            self.keys.append(_read_key(raw))

    def _record(self, what: str, number: int) -> None:
        found = Finding(Invariant.KEPT, what, self.keys[number], self.paths.main, number + 1)
        self.findings.append(found)


def _read_lines(path: Path) -> list[bytes]:
    """Read complete lines, without an incomplete last one."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def _compute_digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=8).digest()


def _read_key(raw: bytes) -> Key | None:
    return key_of(parse_line(raw) or {})
