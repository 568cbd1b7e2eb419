"""Stores the counters of each task in columns: about 300 bytes a task; objects would take 1000.

A group is one task's rollouts by one agent in one scope, identified by its row number.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    """The moments of one number in every group."""

    def __init__(self) -> None:
        self.counts = array("I")
        self._columns = tuple(array("d") for _ in range(4))

    def add(self, rows: Sequence[int], values: Sequence[float]) -> None:
        """Count one value or more, each of the group in a row."""
        if (last := max(rows)) >= len(self.counts):
            self._reach(last)
        counts, (totals, squares, smallest, largest) = self.counts, self._columns
        for row, value in zip(rows, values, strict=True):
            counts[row] += 1
            if value:
                totals[row] += value
                squares[row] += value * value
            if value < smallest[row]:
                smallest[row] = value
            if value > largest[row]:
                largest[row] = value

    def merge(self, row: int, moments: Moments) -> None:
        if row >= len(self.counts):
            self._reach(row)
        totals, squares, smallest, largest = self._columns
        self.counts[row] += moments.count
        totals[row] += moments.total
        squares[row] += moments.squares
        smallest[row] = min(smallest[row], moments.smallest)
        largest[row] = max(largest[row], moments.largest)

    def _reach(self, row: int) -> None:
        missing = row + ROWS_AT_ONCE - len(self.counts)
        self.counts.extend([0] * missing)
        for column, empty in zip(self._columns, EMPTY, strict=True):
            column.extend([empty] * missing)

    def __getitem__(self, row: int) -> Moments:
        """The group's moments; empty if it has no such number."""
        if row >= len(self.counts):
            return Moments()
        return Moments(self.counts[row], *(column[row] for column in self._columns))

    def stats(self) -> Iterator[tuple[float, float, float, float] | None]:
        """The figures of STATS for each group; None if it has no such number."""
        columns = zip(self.counts, *self._columns, strict=True)
        for count, total, squares, smallest, largest in columns:
            yield stats_of(count, total, squares, smallest, largest) if count else None

    def means(self) -> Iterator[tuple[float, int]]:
        """Mean and row of each group that has the number."""
        for row, (count, total) in enumerate(zip(self.counts, self._columns[0], strict=True)):
            if count:
                yield total / count, row

    def ranges(self) -> Iterator[tuple[float, float]]:
        """Smallest and largest number of each group that has one."""
        columns = zip(self.counts, *self._columns[2:], strict=True)
        return ((least, most) for count, least, most in columns if count)

    def sums(self) -> Iterator[tuple[int, float]]:
        """Count and total of each group that has the number."""
        return (pair for pair in zip(self.counts, self._columns[0], strict=True) if pair[0])


ROWS_AT_ONCE = 64

EMPTY = (0.0, 0.0, math.inf, -math.inf)
"""Total, squares, smallest and largest of an empty group."""


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
