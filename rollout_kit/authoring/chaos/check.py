"""Compare the files of an output with its plan: find missing, duplicated, damaged or invented
rollouts. Only reads files, line by line."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...reading import read_object
from ...store.files import OutputPaths
from ...store.kinds import UNREADABLE, key_of, kind_of, why_unreadable
from ...store.lines import was_verified
from ...store.rollouts import RolloutFile
from ...types import JsonObject, Key
from .findings import Finding, Invariant


@dataclass(frozen=True, slots=True)
class Planned:
    """Keys that the input asks for, with their line there, and the numbers of malformed lines."""

    source: str
    keys: Mapping[Key, int]
    malformed: frozenset[int] = frozenset()


@dataclass(slots=True)
class CheckedFiles:
    """Contents of the files, and the faults found in them."""

    rollouts: dict[Key, int] = field(default_factory=dict)
    """Key → line in the main file."""
    unverified: dict[Key, int] = field(default_factory=dict)
    failed: dict[Key, int] = field(default_factory=dict)
    malformed: set[tuple[str, int]] = field(default_factory=set)
    rewards: int = 0
    findings: list[Finding] = field(default_factory=list)

    def count_planned(self, planned: Planned) -> str:
        """Count the planned rollouts per file, as text."""
        where = Counter(self.place(key) for key in planned.keys)
        parts = [f"{len(planned.keys):,} planned: {where['rollouts']:,} with a result"]
        parts += [f"{where[name]:,} {name}" for name in ("unverified", "failed") if where[name]]
        parts += [f"{where[None]:,} in no file"] if where[None] else []
        return ", ".join(parts)

    def place(self, key: Key) -> str | None:
        """The file that holds a key: rollouts, else unverified, else failed."""
        held = ("rollouts", "unverified", "failed")
        return next((name for name in held if key in getattr(self, name)), None)


def check_files(paths: OutputPaths) -> CheckedFiles:
    """Check the files on their own, without the plan."""
    found = CheckedFiles()
    was_finished = _was_finished(paths.manifest)
    for path, default in (
        (paths.main, "rollout"),
        (paths.unverified, "unverified"),
        (paths.failures, "failure"),
        (paths.turns, "turn"),
    ):
        for number, row, kind in _read_rows(path, default, found):
            match default if kind == "rollout" else kind:
                case "rollout":
                    _check_rollout(found, path, number, row)
                case "unverified":
                    main = paths.main if was_finished and path == paths.unverified else None
                    _check_unverified(found, path, number, row, main)
                case "failure" | "malformed":
                    _check_failure(found, path, number, row)
                case "turn":
                    _read_key(found, path, number, row)
    return found


def check_plan(found: CheckedFiles, planned: Planned) -> None:
    """Check that each planned rollout is in a file and each malformed line was reported."""
    source = Path(planned.source)
    found.findings += [
        Finding(Invariant.ACCOUNTED, "is planned, but in none of the files", key, source, line)
        for key, line in planned.keys.items()
        if found.place(key) is None
    ]
    named = {line for path, line in found.malformed if path == planned.source}
    found.findings += [
        Finding(
            Invariant.ACCOUNTED,
            "is not a task, but the failures file does not list it",
            None,
            source,
            line,
        )
        for line in sorted(planned.malformed - named)
    ]


def _read_rows(
    path: Path, default: str, found: CheckedFiles
) -> Iterator[tuple[int, JsonObject, str]]:
    """(number, object, kind) of each line; those that are no JSON objects are recorded."""
    for line in RolloutFile(path).lines(parsed=True, default=default) if path.exists() else ():
        if line.kind != UNREADABLE:
            yield line.number, line.row, kind_of(line.row, default)
            continue
        what = why_unreadable(line.raw)
        if line.is_torn:
            what = "a torn last line: continuing the collection repairs it"
        found.findings.append(Finding(Invariant.KEPT, what, None, path, line.number))


def _read_key(found: CheckedFiles, path: Path, number: int, row: JsonObject) -> Key | None:
    """Return the key of a line, whatever its reward; record a fault if there is none."""
    key = key_of({name: value for name, value in row.items() if name != "reward"})
    if key is None:
        what = "not a rollout: it has no key, or invalid figures"
        found.findings.append(Finding(Invariant.KEPT, what, None, path, number))
    return key


def _check_rollout(found: CheckedFiles, path: Path, number: int, row: JsonObject) -> None:
    key = _read_key(found, path, number, row)
    if key is None:
        return
    if key in found.rollouts:
        what = f"duplicate of line {found.rollouts[key]}"
        found.findings.append(Finding(Invariant.ONCE, what, key, path, number))
        return
    found.rollouts[key] = number
    found.rewards += "reward" in row
    if (what := _find_reward_fault(row)) is not None:
        found.findings.append(Finding(Invariant.HONEST, what, key, path, number))


def _find_reward_fault(row: JsonObject) -> str | None:
    """Return what is wrong with a line's reward, or None."""
    response = row.get("response")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return "has no response"
    has_verdict = was_verified(row)
    if "reward" not in row:
        return "was verified, but has no reward" if has_verdict else None
    reward = row["reward"]
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"its reward is not a finite number: {reward!r}"
    return None if has_verdict else f"has a reward ({reward:g}) but no verifier"


def _check_unverified(
    found: CheckedFiles, path: Path, number: int, row: JsonObject, main: Path | None
) -> None:
    if (key := _read_key(found, path, number, row)) is None:
        return
    if "reward" in row:
        what = f"is unverified, but has a reward: {row['reward']!r}"
        found.findings.append(Finding(Invariant.HONEST, what, key, path, number))
    elsewhere = found.rollouts.get(key) or found.unverified.get(key)
    if main and elsewhere:
        where = main if key in found.rollouts else path
        what = f"is still there after the run's end, and in {where}:{elsewhere}"
        found.findings.append(Finding(Invariant.ONCE, what, key, path, number))
    found.unverified[key] = number


def _check_failure(found: CheckedFiles, path: Path, number: int, row: JsonObject) -> None:
    failure = row.get("failure")
    reason = failure.get("message") or failure.get("class") if isinstance(failure, dict) else None
    if "rollout" not in row and isinstance(row.get("line"), int):
        found.malformed.add((str(row.get("input")), row["line"]))
        return
    if (key := _read_key(found, path, number, row)) is None:
        return
    if not reason:
        what = "failed, but no reason is given"
        found.findings.append(Finding(Invariant.ACCOUNTED, what, key, path, number))
    if "reward" in row:
        what = f"failed, but has a reward: {row['reward']!r}"
        found.findings.append(Finding(Invariant.HONEST, what, key, path, number))
    found.failed[key] = number


def _was_finished(manifest: Path) -> bool:
    """Whether the last run finished: then no verified rollout is left among the unverified."""
    content = read_object(manifest)
    return content.get("exit_status") in (0, 2) and content.get("finished_at") is not None
