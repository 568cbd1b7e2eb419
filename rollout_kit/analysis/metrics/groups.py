"""Stores the counters of each task in columns: about 200 bytes a task; objects would take 1000.

A group is one task's rollouts by one agent in one scope, identified by its row number.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import mul
from typing import Self

from ...store.compact import TaskTable
from ...types import Key
from .intervals import Z_95, wilson


@dataclass(slots=True)
class Moments:
    """Count, sum, sum of squares and extremes of one number."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    smallest: float = math.inf
    largest: float = -math.inf

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Those of at least one number."""
        total, squares = float(sum(values)), float(sum(map(mul, values, values)))
        return cls(len(values), total, squares, float(min(values)), float(max(values)))

    @classmethod
    def of_alike(cls, values: Sequence[tuple[float, int]]) -> Self:
        """Those of numbers, each with how often it occurs."""
        numbers = [value for value, _ in values]
        return cls(
            sum(times for _, times in values),
            math.fsum(value * times for value, times in values),
            math.fsum(value * value * times for value, times in values),
            min(numbers),
            max(numbers),
        )

    def merge(self, other: "Moments") -> None:
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)

    @property
    def mean(self) -> float:
        return self.total / self.count

    def interval(self, error: float, num_tasks: int) -> list[float]:
        """95 % interval of the mean, which has this standard error.

        For numbers from 0 to 1 it is Wilson's interval at the number of independent samples that
        has the same standard error. So it stays within [0, 1] and keeps a width if all are equal.
        """
        if self.smallest < 0 or self.largest > 1:
            return [self.mean - Z_95 * error, self.mean + Z_95 * error]
        spread = self.mean * (1 - self.mean)
        if spread <= 0:  # all 0 or all 1: repeats of a task add no evidence
            number = float(num_tasks)
        else:
            number = spread / (error * error) if error * error > 0 else math.inf
            if self.squares == self.total:  # only 0 and 1: no more samples than rollouts
                number = min(number, self.count)
        return list(wilson(self.mean, number))

    @property
    def stats(self) -> tuple[float, float, float, float]:
        """The figures of STATS."""
        return stats_of(self.count, self.total, self.squares, self.smallest, self.largest)


STATS = ("mean", "max", "min", "std")
"""Mean, largest, smallest and sample standard deviation, which is 0 for a single value."""


def stats_of(
    count: int, total: float, squares: float, smallest: float, largest: float
) -> tuple[float, float, float, float]:
    """The figures of STATS for at least one number."""
    if count == 1:
        return total, largest, smallest, 0.0
    mean = total / count
    spread = squares - total * mean  # NaN, and null in files, if the squares are infinite
    deviation = math.sqrt(max(spread, 0.0) / (count - 1))
    return mean, largest, smallest, deviation


class Column:
    """The moments of one number in every group.

    While all values of a group are equal, their count and the value are kept. The first value that
    differs gives the group a place in the columns of squares, smallest and largest values.
    """

    def __init__(self) -> None:
        self.counts = array("I")
        self._values = array("d")
        """The value of a group; the total, once its values differ."""
        self._places = array("I")
        """Group → 1 + its place, or 0. Empty while no group has a place."""
        self._spread = tuple(array("d") for _ in range(3))

    def add(self, rows: Sequence[int], values: Sequence[float]) -> None:
        """Count one value or more, each of the group in a row."""
        if (last := max(rows)) >= len(self.counts):
            self._reach(last)
        counts, held, places = self.counts, self._values, self._places
        for row, value in zip(rows, values, strict=True):
            if not counts[row]:
                held[row] = value
            elif value != held[row] or (places and places[row]):
                self._merge(row, 1, value, value * value, value, value)
                continue
            counts[row] += 1

    def merge(self, row: int, moments: Moments) -> None:
        if row >= len(self.counts):
            self._reach(row)
        if moments.count:
            extremes = moments.smallest, moments.largest
            self._merge(row, moments.count, moments.total, moments.squares, *extremes)

    def _merge(
        self, row: int, count: int, total: float, square: float, least: float, most: float
    ) -> None:
        own = self.counts[row]
        self.counts[row] += count
        place = self._places[row] if self._places else 0
        if not place:
            if least == most and (not own or least == self._values[row]):
                self._values[row] = least
                return
            place = self._make_place(row, own)
        squares, smallest, largest = self._spread
        self._values[row] += total
        squares[place - 1] += square
        smallest[place - 1] = min(smallest[place - 1], least)
        largest[place - 1] = max(largest[place - 1], most)

    def _make_place(self, row: int, count: int) -> int:
        """Give the group a place, with its values so far, which are equal."""
        if not self._places:
            self._places.frombytes(bytes(self._places.itemsize * len(self.counts)))
        value = self._values[row]
        self._values[row] = value * count
        extremes = (value, value) if count else (math.inf, -math.inf)
        for column, first in zip(self._spread, (value * value * count, *extremes), strict=True):
            column.append(first)
        self._places[row] = place = len(self._spread[0])
        return place

    def _reach(self, row: int) -> None:
        missing = row + ROWS_AT_ONCE - len(self.counts)
        self.counts.extend([0] * missing)
        self._values.extend([0.0] * missing)
        if self._places:
            self._places.extend([0] * missing)

    def __getitem__(self, row: int) -> Moments:
        """The group's moments; empty if it has no such number."""
        if row >= len(self.counts) or not (count := self.counts[row]):
            return Moments()
        value = self._values[row]
        if self._places and (place := self._places[row]):
            return Moments(count, value, *(column[place - 1] for column in self._spread))
        return Moments(count, value * count, value * value * count, value, value)

    def stats(self) -> Iterator[tuple[float, float, float, float] | None]:
        """The figures of STATS for each group; None if it has no such number."""
        return (self[row].stats if count else None for row, count in enumerate(self.counts))

    def means(self) -> Iterator[tuple[float, int]]:
        """Mean and row of each group that has the number."""
        for row, (count, value, place) in enumerate(self._each()):
            if count:
                yield value / count if place else value, row

    def ranges(self) -> Iterator[tuple[float, float]]:
        """Smallest and largest number of each group that has one."""
        _, smallest, largest = self._spread
        for count, value, place in self._each():
            if count:
                yield (smallest[place - 1], largest[place - 1]) if place else (value, value)

    def sums(self) -> Iterator[tuple[int, float]]:
        """Count and total of each group that has the number."""
        for count, value, place in self._each():
            if count:
                yield count, value if place else value * count

    def _each(self) -> Iterator[tuple[int, float, int]]:
        """Count, value or total, and place of each group."""
        places = self._places or repeat(0)
        return zip(self.counts, self._values, places, strict=False)


ROWS_AT_ONCE = 64


class Groups:
    """One row per group. `indices`, `counts` and `successes` are indexed by row.

    The part of one arm has the rows of the `whole`, so that a task is looked up in one table.
    """

    def __init__(self, whole: "Groups | None" = None) -> None:
        self.whole = whole
        self.indices = array("q") if whole is None else whole.indices
        self.counts = array("I")
        self.successes = array("I")
        self.numbers: dict[str, Column] = {}
        self._rows: dict[str, TaskTable] = {} if whole is None else whole._rows

    def __len__(self) -> int:
        return len(self.counts)

    def row(self, agent: str, task_id: str, index: int) -> int:
        """The task's row; a new task gets a new row."""
        if self.whole is not None:
            row = self.whole.row(agent, task_id, index)
            self._reach(row)
            return row
        rows = self._rows.get(agent)
        if rows is None:
            rows = self._rows[agent] = TaskTable()
        new = len(self.counts)
        row = rows.setdefault(task_id, new)
        if row == new:
            self.indices.append(index)
            self.counts.append(0)
            self.successes.append(0)
        return row

    def rows(self, keys: Iterable[Key], indices: Iterable[int]) -> list[int]:
        """The rows of the tasks of rollouts."""
        known: dict[tuple[str, str], int] = {}
        found = []
        for (task_id, agent, _, _), index in zip(keys, indices, strict=True):
            if (row := known.get((agent, task_id))) is None:
                row = known[agent, task_id] = self.row(agent, task_id, index)
            found.append(row)
        return found

    def count(self, rows: Iterable[int], passed: Iterable[bool]) -> None:
        """Count verified rollouts, each of the group in a row."""
        counts, successes = self.counts, self.successes
        for row, has_passed in zip(rows, passed, strict=True):
            counts[row] += 1
            successes[row] += has_passed

    def _reach(self, row: int) -> None:
        if row >= len(self.counts):
            missing = [0] * (row + ROWS_AT_ONCE - len(self.counts))
            self.counts.extend(missing)
            self.successes.extend(missing)

    def column(self, name: str) -> Column:
        column = self.numbers.get(name)
        if column is None:
            column = self.numbers[name] = Column()
        return column

    def merge(self, other: "Groups") -> None:
        for agent, rows in other._rows.items():
            for task_id, theirs in rows.items():
                other._reach(theirs)
                row = self.row(agent, task_id, other.indices[theirs])
                self.counts[row] += other.counts[theirs]
                self.successes[row] += other.successes[theirs]
                for name, column in other.numbers.items():
                    if (moments := column[theirs]).count:
                        self.column(name).merge(row, moments)

    def task_ids(self) -> list[str]:
        """The task id of each row."""
        found = [""] * len(self)
        for rows in self._rows.values():
            for task_id, row in rows.items():
                found[row] = task_id
        return found
