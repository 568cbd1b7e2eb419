"""The index beside an output, kept by the holder of the output's lock: written as lines are, and
read instead of them when the output is opened again.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import NamedTuple

from ...types import Key, Rollout
from ..files import OutputPaths
from .columns import Batch, Columns
from .file import IndexFile, State
from .index import SMALL
from .records import OF_KEYS, Record, RecordMaker

MAX_ODD = 20_000
"""With more lines that have to be read themselves, the whole file is read."""

AT_ONCE = 1 << 18
"""Bytes of lines whose records are made together."""

WANTED = frozenset(("check", "rollout_index", *OF_KEYS))
"""The columns that continuing a run needs."""


class WrongIndex(Exception):
    """The index says what cannot be: it is not the one of this file."""


class Rows(NamedTuple):
    """Consecutive lines of rollouts, as rows of the columns: `start` up to `end`."""

    columns: Columns
    start: int
    end: int


class KeptIndex:
    """The index of the main file; `path` None keeps it nowhere.

    First `load` gives what it holds, with the columns `wanted`; then each further line is told to
    it, in order. `size` is how much of the main file it covers.
    """

    def __init__(self, path: Path | None, wanted: Container[str] = WANTED) -> None:
        self._file, self._wanted = IndexFile(path), wanted
        self.descriptor = -1
        """The main file, once it is open; until then what is written is valid for no file."""
        self.follow: Callable[[Key, int, bytes], None] | None = None
        """Told each rollout that is appended: its offset, and its line."""
        self.reset()

    def load(self) -> Iterator[Rows | int]:
        """What a valid index holds, in file order: rows, and offsets of the lines that have to be
        read themselves. Nothing if it is not valid for the main file."""
        columns = Columns(self._wanted)
        state = self._file.load(columns)
        odd = array("Q", sorted(set(self._file.odd)))
        if state is None or not state.holds_for(self.descriptor) or len(odd) > MAX_ODD:
            self.reset()
            return
        self._begin(columns, state)
        start, offsets = 0, columns.offsets
        for offset in odd:
            end = bisect_left(offsets, offset)
            if start < end:
                yield Rows(columns, start, end)
            yield offset
            start = end + (end < len(offsets) and offsets[end] == offset)
        if start < len(offsets):
            yield Rows(columns, start, len(offsets))
        columns.drop_rows()

    def reset(self) -> None:
        """Begin anew, with an empty index."""
        self._file.reset()
        self._begin(Columns(self._wanted), None)

    def make(self, offset: int, raw: bytes) -> Record | None:
        """The record of a line; it is not kept yet."""
        return self._maker.make(offset, raw)

    def keep(self, offset: int, raw: bytes, record: Record | None, *, is_odd: bool) -> None:
        """Keep the record of the next line, if it has one. `is_odd`: whether the line has to be
        read itself to continue a run."""
        self._make_waiting()
        self.size = offset + len(raw)
        if record is not None and self._file.path:
            self._records.add(record.content)
        if is_odd and self._file.path:
            self._odd.append(offset)

    def append(self, offset: int, raw: bytes, rollout: Rollout) -> None:
        """Keep the record of a rollout that was just written."""
        if self.follow:
            self.follow(rollout.key, offset, raw)
        if self._file.path is None:
            return
        self.size = offset + len(raw)
        self._waiting.append((offset, raw, rollout))
        # a rollout of this process is recorded now: its response should not stay in memory
        if not rollout.figures or self.size - self._waiting[0][0] >= AT_ONCE:
            self._make_waiting()

    def _make_waiting(self) -> None:
        """Make the records of the rollouts that wait for it."""
        waiting, self._waiting = self._waiting, []
        for offset, raw, rollout in waiting:
            content, is_plain = self._maker.make_own(offset, raw, rollout) or (b"", False)
            if content:
                self._records.add(content)
            if not is_plain:
                self._odd.append(offset)

    def take(self, offset: int, raw: bytes, check: int) -> None:
        """Keep the record of a rollout that another program may have written. `check` is the CRC-32
        of its line."""
        if self._file.path is None:
            return
        record = self._maker.make(offset, raw, check)
        self.keep(offset, raw, record, is_odd=record is None or not record.is_plain)

    @property
    def num_waiting(self) -> int:
        """Records that are not written yet."""
        return len(self._records) + len(self._waiting)

    def flush(self) -> None:
        """Write what was kept since, and the state of the main file."""
        if self._file.path is None or (self.size < SMALL and not self._file.is_begun):
            return
        self._make_waiting()
        is_open = self.descriptor >= 0
        state = State.of(self.descriptor, self.size) if is_open else State(self.size, 0, 0, 0, 0)
        if state != self._state:
            self._file.append(self._columns, self._records.take(), state, self._odd)
            self._state, self._odd = state, array("Q")

    def input_ids(self, mark: bytes) -> "array[int]":
        """The ids of the leading lines of the input with this mark, as far as they are known."""
        held, ids = self._file.input, array("Q")
        if mark and held.startswith(mark) and (len(held) - len(mark)) % ids.itemsize == 0:
            ids.frombytes(held[len(mark) :])
        self._file.input = b""
        return ids

    def keep_input(self, mark: bytes, ids: "array[int]") -> None:
        """Keep the ids of the leading lines of an input for the next run."""
        self.flush()
        if self._state and self._file.is_begun:
            self._file.append(self._columns, b"", self._state, input=mark + ids.tobytes())

    def close(self) -> None:
        self._file.close()

    def drop(self) -> None:
        """Remove the index, which does not fit any more."""
        self.reset()
        self._file.remove()

    def _begin(self, columns: Columns, state: State | None) -> None:
        self._columns, self._state = columns, state
        self._maker = RecordMaker(columns, "rollout")
        self._records = Batch(columns)
        self._waiting: list[tuple[int, bytes, Rollout]] = []
        """Rollouts of workers whose records are still to be made: it is cheaper for many at once,
        and a message may have few."""
        self._odd = array("Q")
        self.size = state.size if state else 0


def explain_edit(paths: OutputPaths) -> str:
    """What is said when a line is not the one that the index told."""
    return (
        f"{paths.main} was edited in a way that its size and time do not tell, so what it lacks was"
        f" not known; the run stopped, and {paths.index} is removed: run the same command again"
    )
