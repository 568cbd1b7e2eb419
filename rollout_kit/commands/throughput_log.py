"""`+throughput_log=path.csv`: appends a line per run, to compare runs over weeks.

The header is written once. A file with other columns is never changed, except for one without a
header that has a date, rollouts, seconds, rate and mean reward in each line. Each line is one write
under a lock, so that several collectors can share a file.
"""

import csv
import fcntl
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..collecting.live.snapshot import Snapshot
from ..config.keys import OutputConfig, RolloutsCommand
from ..errors import ConfigError
from ..store.files import OutputPaths

COLUMNS = (
    "date",
    "rollouts",
    "seconds",
    "rollouts_per_s",
    "tokens_per_s",
    "mean_reward",
    "output_tokens_per_s",
    "failed",
    "parallelism",
    "bottleneck",
    "output",
)
"""`tokens_per_s` counts input and output tokens; `mean_reward` covers this run's rollouts only."""

HAND_MADE = ("date", "rollouts", "seconds", "rollouts_per_s", "mean_reward")
"""Columns of a file without a header that was written by hand, with one line per run."""

HEADER = (",".join(COLUMNS) + "\n").encode()


def check_log(command: RolloutsCommand) -> None:
    """ConfigError if no line could be appended; a new file gets its header."""
    path = command.throughput_log
    if path is None or (command.dry_run and not path.exists()):
        return
    if command.output_jsonl_fpath and OutputPaths(command.output_jsonl_fpath).has(path):
        raise ConfigError(f"throughput_log={path} is one of the output's own files: give another")
    with _open(path) as descriptor:
        if os.fstat(descriptor).st_size == 0 and not command.dry_run:
            _write(path, descriptor, HEADER)


def log_run(command: OutputConfig, snapshot: Snapshot, bottleneck: str) -> None:
    """Append the line of a run that has ended; ConfigError if it cannot be written."""
    if command.throughput_log is None:
        return
    run, speed = snapshot.this_run, snapshot.speed
    figures = {
        "date": snapshot.at,
        "rollouts": run.rollouts,
        "seconds": f"{snapshot.elapsed_s:.3f}",
        "rollouts_per_s": f"{speed.rollouts_per_s:.3f}",
        "tokens_per_s": _spell(speed.tokens_per_s, 2),
        "mean_reward": _spell(run.reward, 4),
        "output_tokens_per_s": _spell(speed.output_tokens_per_s, 2),
        "failed": run.failed,
        "parallelism": snapshot.parallel.limit,
        "bottleneck": bottleneck,
        "output": command.output_jsonl_fpath,
    }
    append_line(command.throughput_log, figures)


def _spell(number: float | None, digits: int) -> str:
    return "" if number is None else f"{number:.{digits}f}"


def append_line(path: Path, figures: Mapping[str, Any]) -> None:
    """Append one line; `figures` are given by column."""
    with _open(path) as descriptor:
        columns = HAND_MADE if _is_hand_made(os.pread(descriptor, 4096, 0)) else COLUMNS
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(figures.get(name, "") for name in columns)
        raw = line.getvalue().encode()
        size = os.fstat(descriptor).st_size
        if not size:
            raw = HEADER + raw
        elif os.pread(descriptor, 1, size - 1) != b"\n":
            raw = b"\n" + raw  # the last line was edited by hand or cut off
        _write(path, descriptor, raw)


def _write(path: Path, descriptor: int, raw: bytes) -> None:
    """Write all of `raw` or nothing."""
    size = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, raw)
        if written != len(raw):
            os.ftruncate(descriptor, size)
            raise OSError(0, "no room for the whole line")
    except OSError as error:
        raise ConfigError(f"throughput_log={path}: cannot write: {error.strerror}") from None


@contextmanager
def _open(path: Path) -> Iterator[int]:
    """Open and lock the file; ConfigError if it is neither empty nor a throughput log."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise ConfigError(
            f"throughput_log={path}: cannot write there: {error.strerror}; choose another file"
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"throughput_log={path}: not a regular file; choose another")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _check_header(path, os.pread(descriptor, 4096, 0))
        yield descriptor
    finally:
        os.close(descriptor)


def _check_header(path: Path, start: bytes) -> None:
    first = start.partition(b"\n")[0].decode("utf-8", "replace").removeprefix("\ufeff").strip()
    if start and first != HEADER.decode().strip() and not _is_hand_made(start):
        raise ConfigError(
            f"throughput_log={path}: the file begins with other columns and was not changed:\n"
            f"  found:  {first[:200]}\n  needed: {HEADER.decode().strip()}\n"
            "Give another file, or move this one aside"
        )


def _is_hand_made(start: bytes) -> bool:
    """Whether the first line is a date and four numbers, of which some may be missing."""
    first = start.partition(b"\n")[0].decode("utf-8", "replace")
    date, *numbers = next(csv.reader([first]), None) or [""]
    is_dated = any(letter.isdigit() for letter in date)
    shape = re.compile(r"\s*(\d+(\.\d*)?|\.\d+|)\s*")
    return is_dated and len(numbers) == 4 and all(map(shape.fullmatch, numbers))
