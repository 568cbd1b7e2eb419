"""The files of an output against its plan: what is missing, doubled, broken, or made up. Streams
the files, changes nothing, and starts nothing."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ..store.files import OutputPaths
from ..store.lines import key_of
from ..types import JsonObject, Key
from .findings import Finding, Invariant


@dataclass(frozen=True, slots=True)
class Planned:
    """The keys that the input asks for, each with its line there, and lines that are no task."""

    source: str
    keys: Mapping[Key, int]
    malformed: frozenset[int] = frozenset()


@dataclass(slots=True)
class Checked:
    """What the files hold, and what is wrong with them."""

    rollouts: dict[Key, int] = field(default_factory=dict)
    """Key → line in the main file."""
    unverified: dict[Key, int] = field(default_factory=dict)
    failed: dict[Key, int] = field(default_factory=dict)
    malformed: set[tuple[str, int]] = field(default_factory=set)
    rewards: int = 0
    findings: list[Finding] = field(default_factory=list)

    def counted(self, planned: Planned) -> str:
        """Where the planned rollouts are, in words."""
        where = Counter(self.place(key) for key in planned.keys)
        parts = [f"{len(planned.keys):,} planned: {where['rollouts']:,} with a result"]
        parts += [f"{where[name]:,} {name}" for name in ("unverified", "failed") if where[name]]
        parts += [f"{where[None]:,} nowhere"] if where[None] else []
        return ", ".join(parts)

    def place(self, key: Key) -> str | None:
        """Where a key stands; a result goes before a response, and that before a failure."""
        held = ("rollouts", "unverified", "failed")
        return next((name for name in held if key in getattr(self, name)), None)


def checked(paths: OutputPaths) -> Checked:
    """All that the files themselves tell."""
    found = Checked()
    for number, row in _rows(paths.main, found):
        _check_rollout(found, paths.main, number, row)
    was_finished = _was_finished(paths.manifest)
    for number, row in _rows(paths.unverified, found):
        _check_unverified(found, paths, number, row, was_finished)
    for number, row in _rows(paths.failures, found):
        _check_failure(found, paths.failures, number, row)
    return found


def check_plan(found: Checked, planned: Planned) -> None:
    """Every planned rollout is somewhere; every line that is no task has been named."""
    source = Path(planned.source)
    found.findings += [
        Finding(Invariant.ACCOUNTED, "is planned, and in none of the files", key, source, line)
        for key, line in planned.keys.items()
        if found.place(key) is None
    ]
    named = {line for path, line in found.malformed if path == planned.source}
    found.findings += [
        Finding(
            Invariant.ACCOUNTED, "is no task, and the failures do not say so", None, source, line
        )
        for line in sorted(planned.malformed - named)
    ]


def _rows(path: Path, found: Checked) -> Iterator[tuple[int, JsonObject]]:
    """Numbered lines; one that is no JSON object is a finding."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        for number, raw in enumerate(stream, 1):
            try:
                row: Any = orjson.loads(raw)
            except orjson.JSONDecodeError as error:
                what = f"no JSON ({error})"
                if not raw.endswith(b"\n"):
                    what = "a torn last line: the command that continues repairs it"
                found.findings.append(Finding(Invariant.KEPT, what, None, path, number))
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                what = "no JSON object"
                found.findings.append(Finding(Invariant.KEPT, what, None, path, number))


def _key(found: Checked, path: Path, number: int, row: JsonObject) -> Key | None:
    """The key of a line, its reward left aside; a finding where it has none."""
    key = key_of({name: value for name, value in row.items() if name != "reward"})
    if key is None:
        what = "no line of a rollout: it has no key, or figures that are none"
        found.findings.append(Finding(Invariant.KEPT, what, None, path, number))
    return key


def _check_rollout(found: Checked, path: Path, number: int, row: JsonObject) -> None:
    key = _key(found, path, number, row)
    if key is None:
        return
    if key in found.rollouts:
        what = f"is there a second time, first in line {found.rollouts[key]}"
        found.findings.append(Finding(Invariant.ONCE, what, key, path, number))
        return
    found.rollouts[key] = number
    found.rewards += "reward" in row
    if (what := _dishonest(row)) is not None:
        found.findings.append(Finding(Invariant.HONEST, what, key, path, number))


def _dishonest(row: JsonObject) -> str | None:
    """What is wrong with a line's reward."""
    response = row.get("response")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return "has no response"
    has_verdict = "verifier" in row["rollout"]
    if "reward" not in row:
        return "was verified, and has no reward" if has_verdict else None
    reward = row["reward"]
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"its reward is no finite number: {reward!r}"
    return None if has_verdict else f"has a reward ({reward:g}) that no verifier gave"


def _check_unverified(
    found: Checked, paths: OutputPaths, number: int, row: JsonObject, was_finished: bool
) -> None:
    path = paths.unverified
    if (key := _key(found, path, number, row)) is None:
        return
    if "reward" in row:
        what = f"waits for its verdict, and has a reward already: {row['reward']!r}"
        found.findings.append(Finding(Invariant.HONEST, what, key, path, number))
    elsewhere = found.rollouts.get(key) or found.unverified.get(key)
    if was_finished and elsewhere:
        where = paths.main if key in found.rollouts else path
        what = f"is still there after the run's end, and in {where}:{elsewhere}"
        found.findings.append(Finding(Invariant.ONCE, what, key, path, number))
    found.unverified[key] = number


def _check_failure(found: Checked, path: Path, number: int, row: JsonObject) -> None:
    failure = row.get("failure")
    reason = failure.get("message") or failure.get("class") if isinstance(failure, dict) else None
    if "rollout" not in row and isinstance(row.get("line"), int):
        found.malformed.add((str(row.get("input")), row["line"]))
        return
    if (key := _key(found, path, number, row)) is None:
        return
    if not reason:
        what = "failed, and no reason is given"
        found.findings.append(Finding(Invariant.ACCOUNTED, what, key, path, number))
    if "reward" in row:
        what = f"failed, and has a reward: {row['reward']!r}"
        found.findings.append(Finding(Invariant.HONEST, what, key, path, number))
    found.failed[key] = number


def _was_finished(manifest: Path) -> bool:
    """Whether the last run ended by itself: then nothing that is settled waits any more."""
    try:
        content = orjson.loads(manifest.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return (
        isinstance(content, dict)
        and content.get("exit_status") in (0, 2)
        and (content.get("finished_at") is not None)
    )
