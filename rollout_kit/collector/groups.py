"""The counters of each task, in columns: about 300 bytes a task, where objects take a thousand.

A group is one task's rollouts by one agent in one scope; it is known by its row.
"""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

HEX_DIGITS = 16
"""Of a task's id, which is held as an int where it is one: a third of a text."""


@dataclass(slots=True)
class Moments:
    """Count, sum, sum of squares, extremes and quantiles of one number."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    smallest: float = math.inf
    largest: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value
        if value < self.smallest:
            self.smallest = value
        if value > self.largest:
            self.largest = value

    def merge(self, other: "Moments") -> None:
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def deviation(self) -> float:
        """Sample standard deviation; 0 for a single value."""
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, self.squares - self.total * self.mean) / (self.count - 1))

    def named(self, name: str) -> dict[str, float]:
        stats = {
            "mean": self.mean,
            "max": self.largest,
            "min": self.smallest,
            "std": self.deviation,
        }
        return {f"{stat}/{name}": value for stat, value in stats.items()}


class Column:
    """One number's moments in every group."""

    def __init__(self) -> None:
        self.counts = array("I")
        self._columns = tuple(array("d") for _ in range(4))

    def add(self, row: int, value: float) -> None:
        self._reach(row)
        totals, squares, smallest, largest = self._columns
        self.counts[row] += 1
        totals[row] += value
        squares[row] += value * value
        if value < smallest[row]:
            smallest[row] = value
        if value > largest[row]:
            largest[row] = value

    def merge(self, row: int, moments: Moments) -> None:
        self._reach(row)
        totals, squares, smallest, largest = self._columns
        self.counts[row] += moments.count
        totals[row] += moments.total
        squares[row] += moments.squares
        smallest[row] = min(smallest[row], moments.smallest)
        largest[row] = max(largest[row], moments.largest)

    def _reach(self, row: int) -> None:
        if row >= len(self.counts):
            missing = row + ROWS_AT_ONCE - len(self.counts)
            self.counts.extend([0] * missing)
            for column, empty in zip(self._columns, EMPTY, strict=True):
                column.extend([empty] * missing)

    def __getitem__(self, row: int) -> Moments:
        """Empty where the group has no such number."""
        if row >= len(self.counts):
            return Moments()
        return Moments(self.counts[row], *(column[row] for column in self._columns))

    def __iter__(self) -> Iterator[Moments]:
        """Those of the groups that have the number."""
        return (self[row] for row, count in enumerate(self.counts) if count)


ROWS_AT_ONCE = 64

EMPTY = (0.0, 0.0, math.inf, -math.inf)
"""Total, squares, smallest and largest of nothing."""


class Groups:
    """Grows by a row with each new task. `indices`, `counts` and `successes` are by row."""

    def __init__(self) -> None:
        self.indices = array("q")
        self.counts = array("I")
        self.successes = array("I")
        self.numbers: dict[str, Column] = {}
        self._rows: dict[str, dict[int | str, int]] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def row(self, agent: str, task_id: str, index: int) -> int:
        """The task's row, a new one if it has none."""
        return self._row(agent, _small(task_id), index)

    def column(self, name: str) -> Column:
        column = self.numbers.get(name)
        if column is None:
            column = self.numbers[name] = Column()
        return column

    def merge(self, other: "Groups") -> None:
        for agent, rows in other._rows.items():
            for task, theirs in rows.items():
                row = self._row(agent, task, other.indices[theirs])
                self.counts[row] += other.counts[theirs]
                self.successes[row] += other.successes[theirs]
                for name, column in other.numbers.items():
                    if (moments := column[theirs]).count:
                        self.column(name).merge(row, moments)

    def task_ids(self) -> list[str]:
        """By row."""
        found = [""] * len(self)
        for rows in self._rows.values():
            for task, row in rows.items():
                found[row] = task if isinstance(task, str) else f"{task:0{HEX_DIGITS}x}"
        return found

    def _row(self, agent: str, task: int | str, index: int) -> int:
        rows = self._rows.setdefault(agent, {})
        row = rows.get(task)
        if row is None:
            row = rows[task] = len(self)
            self.indices.append(index)
            self.counts.append(0)
            self.successes.append(0)
        return row


def _small(task_id: str) -> int | str:
    try:
        return int(task_id, 16) if len(task_id) == HEX_DIGITS else task_id
    except ValueError:
        return task_id
