"""The ids of the first lines of an input, which a run leaves to the next one in the index of its
output: rows that are known to be done need not be read again.
"""

from array import array
from collections.abc import Iterable
from typing import Protocol

from ...types import Key
from ..compact import Keys


class KeepsInput(Protocol):
    """The index of an output, as far as it keeps what is known of an input."""

    def input_ids(self, mark: bytes) -> "array[int]": ...

    def keep_input(self, mark: bytes, ids: "array[int]") -> None: ...


class Leading:
    """The leading lines are distinct tasks, without another line between them. All passes over the
    input share them.
    """

    def __init__(self) -> None:
        self.ids = array("Q")
        """Ids as numbers; the first line has number 1."""
        self.known = array("Q")
        """Those that an earlier run left."""
        self._mark = b""

    def follow(self, line: int, task: int, position: int) -> None:
        """Take the task of a line, and its position among the distinct tasks."""
        ids = self.ids
        if line == len(ids) + 1 == position + 1:
            ids.append(task)
        elif line <= len(ids) and ids[line - 1] != task:
            del ids[line - 1 :]  # an earlier run has seen another input

    def restore(self, index: KeepsInput, mark: bytes) -> None:
        """Take over what an earlier run left. `mark` stands for the input as it is, and for how
        its lines become tasks."""
        self._mark, self.known = mark, index.input_ids(mark)
        self.ids.extend(self.known[len(self.ids) :])

    def keep(self, index: KeepsInput, mark: bytes) -> None:
        """Leave all ids to the next run, unless the input has changed meanwhile."""
        if mark and mark == self._mark and self.ids != self.known:
            index.keep_input(mark, self.ids)

    def find_owed(self, done: Keys, wanted: Iterable[Key]) -> "array[int]":
        """The known lines, from 0, whose task lacks one of the wanted keys, whatever task these
        name."""
        owed: set[int] = set()
        for key in wanted:
            tasks = done.tasks(key[1:])
            owed.update(row for row, task in enumerate(self.known) if task not in tasks)
        return array("Q", sorted(owed))
