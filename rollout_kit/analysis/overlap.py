"""Which rows of benchmarks also stand in rows to train on: runs of 13 words that both have.

Words are compared without case, punctuation and spaces. A row of fewer words counts as one run. A
run that several rows of a benchmark share is a part of its prompt: its words are left out.

Thirteen words are what the papers of GPT-3 (arXiv:2005.14165, appendix C) and others compare.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError, number_of
from ..reading import parse_line
from ..responses import as_object, content_texts, input_items
from ..store.input import place_lines
from ..types import JsonObject
from .metrics.intervals import share

RUN = 13
"""Words of a run."""

SHORTEST = 6
"""Words of the shortest row that is compared: fewer are found everywhere."""

SHARED_BY = 3
"""Rows of a benchmark with the same run, from which on it counts as a part of the prompt."""

WORD = re.compile(r"[^\W_]+")

SHOWN = 100
"""Characters of a row that are shown."""

MOST_LEVELS = 100
"""Levels of lists and objects in a row that are read."""


class BenchmarkRow(NamedTuple):
    """A row of a benchmark: where it stands, its text and the hashes of its runs."""

    benchmark: str
    number: int
    text: str
    runs: frozenset[int]


class Overlap(NamedTuple):
    """A row of a benchmark that a row to train on holds: `held` is the share of its runs."""

    row: BenchmarkRow
    place: str
    held: float


@dataclass(slots=True)
class Benchmarks:
    """The runs of all rows, with the rows that have them."""

    rows: list[BenchmarkRow] = field(default_factory=list)
    num_short: int = 0
    """Rows that are too short to be compared."""
    lengths: set[int] = field(default_factory=lambda: {RUN})
    """Words of the runs."""
    by_run: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, path: Path) -> None:
        """Read the rows of a benchmark; ConfigError if there are none."""
        texts = [(number, "\n".join(_texts_of_prompt(row))) for number, row in _read_rows(path)]
        words = [WORD.findall(text.casefold()) for _, text in texts]
        often = Counter(run for each in words for run in set(_runs(each, RUN)))
        for (number, text), own in zip(texts, words, strict=True):
            runs: set[int] = set()
            for part in _without_prompt(own, often):
                size = min(RUN, len(part))
                self.lengths.add(size)
                runs.update(_runs(part, size))
            if not runs:
                self.num_short += 1
                continue
            for run in runs:
                self.by_run[run].append(len(self.rows))
            self.rows.append(BenchmarkRow(name, number, text, frozenset(runs)))
        if not any(row.benchmark == name for row in self.rows):
            raise ConfigError(f"{name}: no row of {path} has {SHORTEST} words")

    def find_in(self, words: Sequence[str]) -> Iterator[tuple[int, float]]:
        """The rows that a text has a run of, by number, with the share of their runs."""
        seen: Counter[int] = Counter()
        for size in self.lengths:
            for run in set(_runs(words, size)):
                seen.update(self.by_run.get(run, ()))
        for number, hits in seen.items():
            yield number, hits / len(self.rows[number].runs)


def check_overlap(
    inputs: Mapping[str, Path], benchmarks: Mapping[str, Path], least: float, num_examples: int
) -> tuple[JsonObject, list[tuple[Path, int]]]:
    """The overlap as JSON, and the rows to train on that hold at least the share `least` of a row
    of a benchmark: file and line. Files have names."""
    known = Benchmarks()
    for name, path in benchmarks.items():
        known.add(name, path)
    best: dict[int, Overlap] = {}
    held: list[tuple[Path, int]] = []
    num_rows = 0
    for name, path in inputs.items():
        for number, row in _read_rows(path):
            num_rows += 1
            words = WORD.findall("\n".join(_strings(row)).casefold())
            found = [each for each in known.find_in(words) if each[1] >= least]
            if found:
                held.append((path, number))
            for at, part in found:
                if at not in best or best[at].held < part:
                    best[at] = Overlap(known.rows[at], f"{name}:{number}", part)
    return {
        "rows": num_rows,
        "rows_with_overlap": len(held),
        "too_short": known.num_short,
        "benchmarks": {
            name: _describe(
                [each for each in known.rows if each.benchmark == name],
                [each for each in best.values() if each.row.benchmark == name],
                num_examples,
            )
            for name in benchmarks
        },
    }, held


def _describe(
    rows: Sequence[BenchmarkRow], found: Sequence[Overlap], num_examples: int
) -> JsonObject:
    worst = sorted(found, key=lambda each: (-each.held, each.row.number))[:num_examples]
    return {
        "rows": len(rows),
        "rows_found": len(found),
        "share": share(len(found), len(rows))._asdict(),
        "examples": [
            {
                "row": each.row.number,
                "found_in": each.place,
                "held": each.held,
                "text": " ".join(each.row.text.split())[:SHOWN],
            }
            for each in worst
        ],
    }


def _read_rows(path: Path) -> Iterator[tuple[int, JsonObject]]:
    for number, _, raw in place_lines(path):
        if not raw.strip():
            continue
        if (row := parse_line(raw)) is None:
            raise ConfigError(f"{path}:{number}: not a JSON object")
        yield number, row


def _without_prompt(words: Sequence[str], often: Counter[int]) -> Iterator[Sequence[str]]:
    """The parts of a row, of enough words, that are not shared with other rows."""
    is_shared = [False] * len(words)
    for at, run in enumerate(_runs(words, RUN)):
        if often[run] >= SHARED_BY:
            is_shared[at : at + RUN] = [True] * RUN
    begin = 0
    for at in range(len(words) + 1):
        if at == len(words) or is_shared[at]:
            if at - begin >= SHORTEST:
                yield words[begin:at]
            begin = at + 1


def _runs(words: Sequence[str], size: int) -> Iterator[int]:
    for at in range(len(words) - size + 1):
        yield hash(" ".join(words[at : at + size]))


def _texts_of_prompt(row: JsonObject) -> Iterator[str]:
    """The messages of the user in a task."""
    for item in input_items(as_object(row.get("responses_create_params"))):
        if item.get("role", "user") == "user":
            yield from content_texts(item.get("content"))


def _strings(value: Any, level: int = 0) -> Iterator[str]:
    """All texts of a row, whatever its format."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict) and level < MOST_LEVELS:
        parts: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in parts:
            yield from _strings(each, level + 1)


def format_overlap(found: Mapping[str, Any]) -> str:
    """The overlap for people."""
    rows = number_of(found["rows"], "row")
    lines = [f"{rows} to train on, {found['rows_with_overlap']:,} of them with text of a benchmark"]
    for name, it in found["benchmarks"].items():
        part = it["share"]
        of = f"{it['rows_found']:,} of {number_of(it['rows'], 'row')}"
        lines += ["", f"{name}: {of} found, {part['value']:.1%}"]
        for each in it["examples"]:
            lines.append(
                f"  row {each['row']} in {each['found_in']}, {each['held']:.0%} of its text:"
            )
            lines.append(f"    {each['text']}")
    if short := found["too_short"]:
        lines += ["", f"{number_of(short, 'row')} of fewer than {SHORTEST} words not compared"]
    return "\n".join(lines)
