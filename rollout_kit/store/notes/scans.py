"""What scanners have found in rollouts: `<stem>.d/scans.jsonl`.

A line `{"set": …, "scanners": {name: version}}` names the scanners that were used together. A line
of a rollout names that set, the checksum of the rollout's line, and what was found in it. Of
several lines about the same rollout and scanner, the last one counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ...types import JsonObject, Key
from ..files import OutputPaths
from ..input import plain_path
from ..kinds import kind_of, mark
from ..lines import now_text
from .note_file import NoteFile

MOST_FINDINGS = 200
"""Findings of one scanner in one rollout that are kept; the last one says how many there are."""


class TurnFinding(NamedTuple):
    """What a scanner has found. `turn` 0 is none of the turns; `says` is a sentence for people."""

    scanner: str
    turn: int
    says: str


class _Scanned(NamedTuple):
    """One line about a rollout."""

    set_name: str
    check: int
    found: Mapping[str, Sequence[Any]]
    """Scanner → [turn, sentence] of each finding."""


def find_scans(path: Path) -> "Scans | None":
    """The scans beside a file of rollouts; None if it was never scanned."""
    path = plain_path(path)
    if path.suffix != ".jsonl":
        return None
    found = Scans.beside(path)
    return found if found.path.exists() else None


class Scans(NoteFile):
    """The scans of one output. The file is read when something is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sets: dict[str, Mapping[str, str]] = {}
        """Name of a set → its scanners with their versions."""
        self._lines: dict[Key, list[_Scanned]] = {}

    @classmethod
    def beside(cls, output: Path) -> "Scans":
        return cls(OutputPaths(output).scans)

    def _read(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self._sets, self._lines = {}, {}
        for line in lines:
            self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        name, scanners = line.get("set"), line.get("scanners")
        if kind_of(line, "scan") != "scan" or not isinstance(name, str):
            return
        if isinstance(scanners, dict):
            self._sets[name] = scanners
        elif (key := _read_key(line)) is not None and isinstance(found := line.get("found"), dict):
            self._lines.setdefault(key, []).append(_Scanned(name, line.get("check") or 0, found))

    def names(self, key: Key) -> tuple[str, ...]:
        """The scanners that found something in a rollout."""
        return tuple(dict.fromkeys(each.scanner for each in self.findings(key)))

    def findings(self, key: Key) -> list[TurnFinding]:
        """What was found in a rollout."""
        if self._seen is None:
            self.refresh()
        found: dict[str, Sequence[Any]] = {}
        for line in self._lines.get(key, ()):
            for scanner in self._sets.get(line.set_name, ()):
                found[scanner] = line.found.get(scanner, ())
        return list(_read_findings(found))

    def know(self, key: Key, check: int, scanners: Mapping[str, str]) -> bool:
        """Whether these versions of the scanners have looked at this line."""
        known: dict[str, str] = {}
        for line in self._lines.get(key, ()):
            if line.check == check:
                known |= self._sets.get(line.set_name, {})
        return scanners.items() <= known.items()

    def add(
        self,
        scanners: Mapping[str, str],
        results: Iterable[tuple[Key, int, Sequence[TurnFinding]]],
    ) -> None:
        """Append what scanners have found in rollouts: key, checksum of the line, findings."""
        name = sha256(orjson.dumps(scanners, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]
        lines: list[JsonObject] = []
        if name not in self._sets:
            lines.append({"set": name, "scanners": dict(scanners), "at": now_text()})
        for key, check, findings in results:
            found: dict[str, list[Any]] = {}
            for each in findings:
                found.setdefault(each.scanner, []).append([each.turn, each.says])
            cut = {scanner: _shorten(each) for scanner, each in found.items()}
            lines.append({"set": name, **key._asdict(), "check": check, "found": cut})
        self._append({**mark("scan"), **line} for line in lines)
        for line in lines:
            self._take(line)


def _read_key(line: Mapping[str, Any]) -> Key | None:
    task_id, agent, index = (line.get(name) for name in ("task_id", "agent", "rollout_index"))
    if not (isinstance(task_id, str) and isinstance(agent, str) and isinstance(index, int)):
        return None
    return Key(task_id, agent, str(line.get("scope") or ""), index)


def _shorten(findings: list[Any]) -> list[Any]:
    if len(findings) <= MOST_FINDINGS:
        return findings
    last = [0, f"{len(findings) - MOST_FINDINGS + 1:,} more of the same kind"]
    return [*findings[: MOST_FINDINGS - 1], last]


def _read_findings(found: Mapping[str, Sequence[Any]]) -> Iterator[TurnFinding]:
    for scanner, each in found.items():
        for pair in each:
            with suppress(TypeError, ValueError):
                turn, says = pair
                yield TurnFinding(scanner, int(turn), str(says))
