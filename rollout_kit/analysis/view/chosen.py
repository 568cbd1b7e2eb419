"""The chosen rows of a dataset by file, agent and arm, and their columns as a whole: figures of a
million rows are made of them in about a second."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, repeat
from typing import Any

from ...store.arms.order import Place
from ...store.columns import Columns
from ...store.filters.masks import COMPUTED, value_in
from ...store.scope import parse_scope
from .alike import Alike, are_many_alike, find_alike
from .dataset import ROW_BITS, ROW_MASK, Dataset

Name = tuple[str, str, str]
"""File, agent and arm."""

MAX_SERIES = 8
"""Files, agents and arms that a plot tells apart; those after them are one series together."""

OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Known:
    """Finite numbers of columns. Without `times`, there are those of each row. With `times`, rows
    with the same numbers stand there once, and `times` is how many rows they are."""

    columns: Sequence[Sequence[float]]
    times: Sequence[int] | None = None

    @property
    def numbers(self) -> Sequence[float]:
        """Those of the only column."""
        (column,) = self.columns
        return column

    @property
    def num_rows(self) -> int:
        return len(self.columns[0]) if self.times is None else sum(self.times)

    def each(self) -> Iterable[float]:
        """The number of every row."""
        if self.times is None:
            return self.numbers
        return chain.from_iterable(map(repeat, self.numbers, self.times))

    def count(self, keys: Iterable[Any]) -> Counter[Any]:
        """How many rows have each key; `keys` has those of the numbers, in their order."""
        if self.times is None:
            return Counter(keys)
        found = Counter[Any]()
        for key, number in zip(keys, self.times, strict=True):
            found[key] += number
        return found


@dataclass(slots=True)
class Chosen:
    """Rows of one file."""

    columns: Columns
    number: int
    """Of the file, as ids have it."""
    rows: Sequence[int]
    _gathered: dict[str, array[float]] = field(default_factory=dict, compare=False)
    _alike: dict[tuple[str, ...], list[Alike]] = field(default_factory=dict, compare=False)

    def gather(self, column: array[Any]) -> array[Any]:
        """What a column holds in the rows."""
        rows = self.rows
        if isinstance(rows, range):
            return column[rows.start : rows.stop]
        return array(column.typecode, map(column.__getitem__, rows))

    def numbers(self, name: str) -> array[float]:
        """What a column of numbers holds in the rows."""
        if name not in self._gathered:
            self._gathered[name] = self.gather(self.columns.numbers[name])
        return self._gathered[name]

    def alike(self, *names: str) -> list[Alike]:
        """The rows that have the same numbers in columns; a row is its place among the rows."""
        if names not in self._alike:
            self._alike[names] = find_alike([self.numbers(name) for name in names])
        return self._alike[names]

    def known(self, *names: str) -> Known:
        """The rows that have a finite number in each of the columns."""
        held: list[Sequence[Any]] = [self.numbers(name) for name in names]
        if alike := self._recall(names):
            held = [[column[at] for at, _ in alike] for column in held]
            held.append([number for _, number in alike])
        for at in range(len(names)):
            if not math.isfinite(sum(held[at])):  # else all of them are finite
                is_finite = bytes(map(math.isfinite, held[at]))
                held = [list(compress(each, is_finite)) for each in held]
        return Known(held[: len(names)], held[-1] if alike else None)

    def _recall(self, names: tuple[str, ...]) -> list[Alike] | None:
        """Rows that have the same numbers in columns, and perhaps in others too, if those are
        found or quickly counted."""
        for others, alike in self._alike.items():
            if set(names) <= set(others) and 2 * len(alike) <= len(self.rows):
                return alike
        is_worth_it = are_many_alike([self.numbers(name) for name in names])
        return self.alike(*names) if is_worth_it else None

    def with_number(self, name: str) -> Chosen:
        """The rows that have a finite number in a column."""
        column = self.numbers(name)
        if math.isfinite(sum(column)):
            return self
        rows = list(compress(self.rows, map(math.isfinite, column)))
        return Chosen(self.columns, self.number, rows)

    def values(self, name: str) -> Iterator[Any]:
        """The values of a column, or of what is computed from columns, row by row."""
        return (value_in(self.columns, name, row) for row in self.rows)

    def is_plain(self, name: str) -> bool:
        """Whether a column holds nothing but numbers."""
        columns = self.columns
        is_flag = name in COMPUTED or name in columns.texts or name in columns.flags
        return not is_flag and name in columns.numbers

    def id_of(self, at: int) -> int:
        """The id of one of the rows."""
        return self.number << ROW_BITS | self.rows[at]


class Series:
    """What a plot tells apart: file, agent and arm, as far as they differ."""

    def __init__(self, dataset: Dataset, ids: Sequence[int]) -> None:
        self.parts = _divide(dataset, ids)
        order = _order_of(dataset)
        known = sorted(self.parts, key=order)
        shown = [at for at in range(3) if len({part[at] for part in known}) > 1]
        labels = [" · ".join(filter(None, (part[at] for at in shown))) for part in known]
        is_short = len(labels) <= MAX_SERIES
        self.labels = labels if is_short else [*labels[: MAX_SERIES - 1], OTHERS]
        self.parts = {name: self.parts[name] for name in known}
        self.chosen: list[list[Chosen]] = [[] for _ in self.labels]
        """The rows of each series."""
        for at, each in enumerate(self.parts.values()):
            self.chosen[min(at, MAX_SERIES - 1)] += each

    def counts(self, found: Sequence[dict[Any, int]]) -> dict[Any, list[int]]:
        """Value → how often each series has it, from the counts of each."""
        joined: dict[Any, list[int]] = {}
        for at, each in enumerate(found):
            for value, number in each.items():
                joined.setdefault(value, [0] * len(self.labels))[at] += number
        return joined


def _divide(dataset: Dataset, ids: Sequence[int]) -> dict[Name, list[Chosen]]:
    """The rows of each file, agent and arm."""
    found = defaultdict[Name, list[Chosen]](list)
    for number, rows in _rows_of(dataset, ids):
        chosen = Chosen(dataset.parts[number].index.columns, number, rows)
        for name, each in _divide_file(dataset.output_of(number).name, chosen):
            found[name].append(each)
    return found


def _rows_of(dataset: Dataset, ids: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """The number of each file and its rows."""
    sizes = [len(part.index) for part in dataset.parts]
    if sum(sizes) == len(ids):  # they are all rows
        yield from ((number, range(size)) for number, size in enumerate(sizes) if size)
        return
    ordered, begin = sorted(ids), 0
    while begin < len(ordered):
        number = ordered[begin] >> ROW_BITS
        end = bisect_left(ordered, (number + 1) << ROW_BITS, begin)
        first, last = ordered[begin] & ROW_MASK, ordered[end - 1] & ROW_MASK
        rows: Sequence[int] = range(first, last + 1)
        if len(rows) != end - begin:
            rows = [each & ROW_MASK for each in ordered[begin:end]]
        yield number, rows
        begin = end


def _divide_file(file: str, chosen: Chosen) -> Iterator[tuple[Name, Chosen]]:
    agents, scopes = (chosen.columns.texts[name] for name in ("agent", "scope"))
    of_agents, of_scopes = chosen.gather(agents.codes), chosen.gather(scopes.codes)
    held: dict[tuple[int, int], Any] = {}
    if len(find_alike([of_agents, of_scopes])) == 1:
        held[of_agents[0], of_scopes[0]] = chosen.rows
    else:
        for *code, row in zip(of_agents, of_scopes, chosen.rows, strict=True):
            held.setdefault((code[0], code[1]), []).append(row)
    for (agent, scope), rows in held.items():
        arm = parse_scope(scopes.names[scope] or "").arm
        yield (file, agents.names[agent] or "", arm), Chosen(chosen.columns, chosen.number, rows)


def _order_of(dataset: Dataset) -> Callable[[Name], tuple[str, str, Place]]:
    order = dataset.arm_order()
    return lambda part: (part[0], part[1], order.place_of(part[2]))
