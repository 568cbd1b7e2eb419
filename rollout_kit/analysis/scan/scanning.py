"""Looks through files of rollouts with scanners, and keeps what they find beside each file.

All scanners run in one worker process, which is killed when a rollout takes too long: texts of
models meet regular expressions and functions of users there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ...errors import ConfigError
from ...serving.workers.blocking import BlockingWorker
from ...serving.workers.pool import WorkerError
from ...store.filters.expression import Filter
from ...store.notes.scans import Scans, TurnFinding
from ...store.rollouts import RolloutFile
from ...types import Key
from .scanners import ScannerSpec

CHILD = Path(__file__).with_name("looking.py")

AT_ONCE, MAX_AT_ONCE = 256, 2 << 20
"""Rollouts that are handed to the worker at once, and the bytes of their lines."""

KEEP_EACH = 8
"""Portions after which findings are written."""

MAX_MEMORY_MB = 8192

SCANNED = ""
"""In a count of problems: the rollouts that were looked through."""


class StoredRollout(NamedTuple):
    """A rollout of a file, with the checksum by which a scan knows its line again."""

    key: Key
    check: int
    raw: bytes


class ScanResult(NamedTuple):
    """What scanners have found in a rollout."""

    key: Key
    check: int
    findings: list[TurnFinding]


def open_scans(path: Path) -> Scans:
    """The scans of a file; ConfigError if nothing can be kept beside it."""
    if path.suffix != ".jsonl":
        raise ConfigError(f"{path}: findings are kept beside a .jsonl file: unpack it first")
    found = Scans.beside(path)
    found.refresh()
    return found


def list_rollouts(
    path: Path, keeps: Filter | None, left_out: Counter[str] | None = None
) -> Iterator[StoredRollout]:
    """The rollouts of a file that a filter keeps. `left_out` gets why lines are none → how many.
    ConfigError if the file has no rollout."""
    file = RolloutFile(path, skips_newer=True)
    is_empty = True
    for line in file.heads(parsed=keeps is not None):
        assert line.head is not None
        is_empty = False
        rollout = file.join(line) if keeps is not None else None
        if keeps is None or (rollout is not None and keeps(rollout)):
            yield StoredRollout(line.head.key, crc32(line.raw), line.raw)
    if left_out is not None:
        left_out.update(file.left_out)
    if is_empty:
        why = "; ".join(f"{number:,} {reason}" for reason, number in file.left_out.items())
        raise ConfigError(f"{path}: it holds no rollout{': ' * bool(why)}{why}")


def scan_file(
    scans: Scans,
    rollouts: Iterator[StoredRollout],
    specs: Sequence[ScannerSpec],
    time_limit_s: float,
    counted: Counter[str],
) -> Iterator[tuple[Key, list[TurnFinding]]]:
    """What the scanners find in each rollout. Only what they do not know yet is looked through.
    `counted` gets how many were (SCANNED), and why some could not be."""
    scanners = {spec.name: spec.version for spec in specs}
    found: list[ScanResult] = []
    with closing(_Looking(specs, time_limit_s, counted)) as looking:
        for number, portion in enumerate(_divide(rollouts), 1):
            new: list[StoredRollout] = []
            for each in portion:
                if scans.know(each.key, each.check, scanners):
                    yield each.key, _own(scans.findings(each.key), scanners)
                else:
                    new.append(each)
            results = looking.look(new) if new else []
            yield from ((each.key, each.findings) for each in results)
            found += results
            if found and number % KEEP_EACH == 0:
                scans.add(scanners, found)
                found = []
    if found:
        scans.add(scanners, found)


def _own(findings: list[TurnFinding], scanners: Mapping[str, str]) -> list[TurnFinding]:
    return [each for each in findings if each.scanner in scanners]


def _divide(rollouts: Iterator[StoredRollout]) -> Iterator[list[StoredRollout]]:
    portion: list[StoredRollout] = []
    size = 0
    for each in rollouts:
        if portion and (len(portion) == AT_ONCE or size + len(each.raw) > MAX_AT_ONCE):
            yield portion
            portion, size = [], 0
        portion.append(each)
        size += len(each.raw)
    if portion:
        yield portion


class _Looking:
    """The worker process. A rollout that a scanner could not look through has no result: it is
    scanned again next time."""

    def __init__(
        self, specs: Sequence[ScannerSpec], time_limit_s: float, counted: Counter[str]
    ) -> None:
        self._specs, self._counted = [spec[:3] for spec in specs], counted
        self._worker = BlockingWorker(
            CHILD, "work", deadline_s=time_limit_s, max_memory_mb=MAX_MEMORY_MB
        )

    def close(self) -> None:
        self._worker.close()

    def look(self, portion: Sequence[StoredRollout]) -> list[ScanResult]:
        try:
            found = self._ask(self._specs, portion)
        except (TimeoutError, WorkerError):
            found = [self._look_singly(each) for each in portion]
        results: list[ScanResult] = []
        self._counted[SCANNED] += len(portion)
        for each, said in zip(portion, found, strict=True):
            for name, error in said["errors"].items():
                self._counted[f"{name}: {error}"] += 1
            if not said["errors"]:
                findings = [TurnFinding(*finding) for finding in said["found"]]
                results.append(ScanResult(each.key, each.check, findings))
        return results

    def _look_singly(self, rollout: StoredRollout) -> dict[str, Any]:
        """What each scanner alone says of one rollout."""
        joined: dict[str, Any] = {"found": [], "errors": {}}
        for spec in self._specs:
            try:
                (said,) = self._ask([spec], [rollout])
            except (TimeoutError, WorkerError) as error:
                joined["errors"][spec[0]] = str(error)
            else:
                joined["found"] += said["found"]
                joined["errors"] |= said["errors"]
        return joined

    def _ask(
        self, specs: Sequence[Sequence[str]], portion: Sequence[StoredRollout]
    ) -> list[dict[str, Any]]:
        lines = [each.raw.decode("utf-8", "replace") for each in portion]
        return self._worker.call(specs, lines)
