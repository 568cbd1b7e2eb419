"""The chosen rows of a dataset by file, agent and arm, and their columns as a whole: figures of a
million rows are made of them in seconds."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from ...store.arms.order import Place
from ...store.columns import Columns
from ...store.filters.masks import COMPUTED, value_in
from ...store.scope import parse_scope
from .dataset import ROW_BITS, ROW_MASK, Dataset

Name = tuple[str, str, str]
"""File, agent and arm."""

MAX_SERIES = 8
"""Files, agents and arms that a plot tells apart; those after them are one series together."""

OTHERS = "others"


@dataclass(slots=True)
class Chosen:
    """Rows of one file."""

    columns: Columns
    number: int
    """Of the file, as ids have it."""
    rows: Sequence[int]
    _known: dict[tuple[str, ...], "Chosen"] = field(default_factory=dict, compare=False)
    """What `known` has found."""

    def gather(self, column: Sequence[Any]) -> Sequence[Any]:
        """What a column holds in the rows."""
        rows = self.rows
        if isinstance(rows, range):
            return column[rows.start : rows.stop]
        return list(map(column.__getitem__, rows))

    def numbers(self, name: str) -> Sequence[float]:
        """The values of a column that are finite numbers."""
        if (column := self.columns.numbers.get(name)) is None:
            return []
        return self.known(name).gather(column)

    def known(self, *names: str) -> "Chosen":
        """The rows in which these columns have finite numbers."""
        if (found := self._known.get(names)) is not None:
            return found
        rows = self.rows
        for name in names:
            values = Chosen(self.columns, self.number, rows).gather(self.columns.numbers[name])
            if not math.isfinite(sum(values)):  # else all of them are finite
                rows = list(compress(rows, map(math.isfinite, values)))
        found = self._known[names] = Chosen(self.columns, self.number, rows)
        return found

    def values(self, name: str) -> Iterator[Any]:
        """The values of a column, or of what is computed from columns, row by row."""
        return (value_in(self.columns, name, row) for row in self.rows)

    def is_plain(self, name: str) -> bool:
        """Whether a column holds nothing but numbers."""
        columns = self.columns
        is_flag = name in COMPUTED or name in columns.texts or name in columns.flags
        return not is_flag and name in columns.numbers

    def ids(self, which: slice) -> Iterator[int]:
        """The ids of some of the rows."""
        above = self.number << ROW_BITS
        return map(above.__or__, self.rows[which])


class Series:
    """What a plot tells apart: file, agent and arm, as far as they differ."""

    def __init__(self, dataset: Dataset, ids: Iterable[int]) -> None:
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


def _divide(dataset: Dataset, ids: Iterable[int]) -> dict[Name, list[Chosen]]:
    """The rows of each file, agent and arm."""
    ordered, found, begin = sorted(ids), defaultdict[Name, list[Chosen]](list), 0
    while begin < len(ordered):
        number = ordered[begin] >> ROW_BITS
        end = bisect_left(ordered, (number + 1) << ROW_BITS, begin)
        first, last = ordered[begin] & ROW_MASK, ordered[end - 1] & ROW_MASK
        rows: Sequence[int] = range(first, last + 1)
        if len(rows) != end - begin:
            rows = [each & ROW_MASK for each in ordered[begin:end]]
        chosen = Chosen(dataset.parts[number].index.columns, number, rows)
        for name, each in _divide_file(dataset.output_of(number).name, chosen):
            found[name].append(each)
        begin = end
    return found


def _divide_file(file: str, chosen: Chosen) -> Iterator[tuple[Name, Chosen]]:
    agents, scopes = (chosen.columns.texts[name] for name in ("agent", "scope"))
    of_agents, of_scopes = chosen.gather(agents.codes), chosen.gather(scopes.codes)
    held: dict[tuple[int, int], Any] = {}
    if len(set(of_agents)) == len(set(of_scopes)) == 1:
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
