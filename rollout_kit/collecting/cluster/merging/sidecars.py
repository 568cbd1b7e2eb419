"""Merges what lies beside outputs: other lines, and the manifests."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from ....reading import parse_line, read_lines
from ....store.compact import Keys
from ....store.files import OutputPaths, write_atomically
from ....store.kinds import key_of
from ....store.lines import now_text
from ....store.manifest import MAX_INPUTS
from ....store.rollouts import iterate_beside
from ....types import JsonObject, Key
from ...results import Status
from .findings import UNIONS

COPIED = (
    "groups.jsonl",
    "labels.jsonl",
    "scans.jsonl",
    "acks.jsonl",
    "runs.ndjson",
    "unverified.jsonl",
    "turns.jsonl",
    "failures.jsonl",
)
"""The sidecars whose lines are copied."""


def merge_sidecars(
    sources: Sequence[OutputPaths], output: OutputPaths, done: Keys
) -> tuple[int, int]:
    """Write the sidecars; returns the numbers of rollouts without a verdict and without a result.

    `done` are the keys of the main file.
    """

    def copy(name: str, keeps: Callable[[Key], bool] | None = None) -> None:
        lines = _lines([each.sidecar(name) for each in sources], keeps)
        if (first := next(lines, None)) is not None:
            write_atomically(output.sidecar(name), chain([first], lines))

    waiting, failed = Keys(), Keys()
    keeps: dict[str, Callable[[Key], bool]] = {
        "unverified.jsonl": lambda key: key not in done and waiting.add(key),
        "turns.jsonl": lambda key: key not in done,
    }
    for name in COPIED:
        copy(name, keeps.get(name))
    for paths in sources:
        for line in iterate_beside(paths.failures, "failure"):
            if line.head and line.head.key not in done and line.head.key not in waiting:
                failed.add(line.head.key)
    return len(waiting), len(failed)


def _lines(paths: Iterable[Path], keeps: Callable[[Key], bool] | None) -> Iterator[bytes]:
    """The sound lines of files; with `keeps`, those whose keys are to be kept."""
    for path in paths:
        for _, raw in read_lines(path):
            if (row := parse_line(raw)) is None:
                continue
            if keeps is None or ((key := key_of(row)) is not None and keeps(key)):
                yield raw if raw.endswith(b"\n") else raw + b"\n"


def merge_manifests(
    manifests: Sequence[JsonObject],
    sources: Sequence[OutputPaths],
    counts: JsonObject,
    status: Status,
) -> JsonObject:
    """One manifest, with which a run continues the merged output."""
    merged: JsonObject = {"command": "", "pid": None}
    first = next(filter(None, manifests), {})
    merged |= {name: first[name] for name in ("versions", "config") if name in first}
    for name in UNIONS:
        merged[name] = {}
        for manifest in manifests:
            merged[name] |= manifest.get(name) or {}
    inputs: dict[tuple[object, object], JsonObject] = {}
    for entry in chain.from_iterable(each.get("inputs") or () for each in manifests):
        which = (entry.get("path"), entry.get("limit"))
        seen = inputs.setdefault(which, {**entry, "tasks": 0, "planned": 0})
        seen.pop("shard", None)
        for number in ("tasks", "planned"):
            seen[number] += entry.get(number) or 0
    return {
        **merged,
        "inputs": list(inputs.values())[-MAX_INPUTS:],
        "merged": [str(paths.main) for paths in sources],
        "started_at": now_text(),
        "finished_at": now_text(),
        "counts": counts,
        "exit_status": int(status),
    }
