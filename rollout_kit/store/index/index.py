"""The index of one file: loaded, extended while the file grows, rebuilt after an edit."""

import os
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from ...errors import ConfigError
from ...reading import MAX_STORED, iterate_lines
from ...types import Key
from ..compact import Keys
from ..files import OutputPaths
from .columns import Batch, Columns
from .file import IndexFile, State, cache_folder
from .left_out import REPEATED, why_no_row
from .records import RecordMaker

BATCH = 4096
"""Lines in a chunk of the index file."""

BLOCK = 1 << 20
"""Bytes per read."""

SMALL = 1 << 20
"""A smaller file is read in less time than its index would save."""


class LineChanged(Exception):
    """A line is not the one that was indexed: the file was edited."""


@dataclass
class Index:
    """The rollouts, responses without a verdict and failures of one JSONL file, by row number.

    `kept_at`: the file of the index, which only one process may write; None keeps it in memory.
    `beside`: an index that the writer of the file keeps; it is read where it is valid, and what it
    lacks stays in memory.
    """

    path: Path
    default: str = "rollout"
    kept_at: Path | None = None
    beside: Path | None = None
    columns: Columns = field(default_factory=Columns)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → lines without a row, of those read by this process; see `count_others`."""
    num_rebuilt: int = 0
    """How often an edited file was indexed anew: row numbers before are void."""
    size: int = 0
    """Bytes that are indexed."""
    rest: bytes = b""
    """What followed them at the last update: a line without a newline, which has no row."""

    def __post_init__(self) -> None:
        self._file = IndexFile(None)
        self._state: State | None = self._load_beside()
        self._seen: Keys | None = None
        """Keys of the rollouts, once lines are added."""
        self._maker: RecordMaker | None = None
        self._is_edited = False
        """A line was read that is not the one that was indexed."""
        if self._state is None:
            self.columns, self._file = Columns(), IndexFile(self.kept_at)
            self._state = self._file.load(self.columns)
        if self._state is None:
            self.columns = Columns()
        self.size = self._state.size if self._state else 0

    def _load_beside(self) -> State | None:
        """Read the index that the writer of the file keeps; None if it is not valid."""
        with suppress(OSError), self.path.open("rb") as stream:
            state = IndexFile(self.beside).load(self.columns)
            if state is not None and state.holds_for(stream.fileno()):
                return state
        return None

    def __len__(self) -> int:
        return len(self.columns)

    def update(self, pause: Callable[[], None] = lambda: None) -> bool:
        """Index what was added to the file, or all of it after an edit; True if rows changed.

        `pause` is called between batches. ConfigError if the file cannot be read.
        """
        try:
            with self.path.open("rb", BLOCK) as stream:
                if self._is_edited or (self._state and not self._state.holds_for(stream.fileno())):
                    self._reset()
                if os.fstat(stream.fileno()).st_size == self.size:
                    self.rest = b""
                    return False
                before = len(self), self.num_rebuilt
                self._add(stream, pause)
                return before != (len(self), self.num_rebuilt)
        except FileNotFoundError:
            if not len(self):
                return False
            self._reset()
            return True
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        finally:
            self._file.close()

    def line(self, row: int) -> bytes:
        """The line as it stands; LineChanged if it is not the one that was indexed."""
        return next(self.lines([row]))

    def lines(self, rows: Iterable[int]) -> Iterator[bytes]:
        """The same for several rows, in their order."""
        columns = self.columns
        with suppress(OSError), self.path.open("rb") as stream:
            for row in rows:
                raw = os.pread(stream.fileno(), columns.lengths[row], columns.offsets[row])
                if len(raw) != columns.lengths[row] or crc32(raw) != columns.checks[row]:
                    break
                yield raw
            else:
                return
        self._is_edited = True
        raise LineChanged(f"{self.path} was edited")

    def key(self, row: int) -> Key:
        columns = self.columns
        agent, scope = columns.texts["agent"][row], columns.texts["scope"][row]
        index = int(columns.numbers["rollout_index"][row])
        return Key(columns.task_id(row), agent or "", scope or "", index)

    def count_others(self) -> Counter[str]:
        """Reason → lines that have no row, among those that are indexed."""
        maker, found = RecordMaker(Columns(), self.default), Counter[str]()
        with self.path.open("rb") as stream:
            for begin, end in self._gaps():
                stream.seek(begin)
                while (at := stream.tell()) < end:
                    raw = stream.readline(end - at)
                    if at == 0:
                        raw = raw.removeprefix(BOM_UTF8)
                    if maker.make(at, raw) is not None:
                        found[REPEATED] += 1
                    elif raw.strip():
                        found[why_no_row(raw)] += 1
        return found

    def why_no_last(self) -> str:
        """Why a last line without a newline is no rollout; empty if it is one, or there is none."""
        if not self.rest.strip() or RecordMaker(Columns(), self.default).make(0, self.rest):
            return ""
        return why_no_row(self.rest)

    def _gaps(self) -> Iterator[tuple[int, int]]:
        """(begin, end) of the parts of the file that have no rows."""
        columns, end = self.columns, 0
        if sum(columns.lengths) != self.size:
            for begin, length in zip(columns.offsets, columns.lengths, strict=True):
                if end < begin:
                    yield end, begin
                end = begin + length
            yield end, self.size

    def _reset(self) -> None:
        self.columns = Columns()
        self._file.close()
        self._file = IndexFile(self.kept_at)
        self._state, self._seen, self._maker, self.size = None, None, None, 0
        self._is_edited = False
        self.left_out.clear()
        self.rest = b""
        self.num_rebuilt += 1

    def _add(self, stream: BinaryIO, pause: Callable[[], None]) -> None:
        columns = self.columns
        if self._maker is None:
            self._maker = RecordMaker(columns, self.default)
        if self._seen is None:
            self._seen = Keys()
            for row in range(len(columns)):
                if columns.texts["kind"][row] == "rollout":
                    self._seen.add(self.key(row))
        records, end = Batch(columns), self.size
        stream.seek(end)
        self.rest = b""
        for number, raw in enumerate(iterate_lines(stream, MAX_STORED), 1):
            if not raw.endswith(b"\n"):
                self.rest = raw if end else raw.removeprefix(BOM_UTF8)
                break
            if number % BATCH == 0 and records:
                self._keep(stream, records, end)
                pause()
            offset, end = end, end + len(raw)
            if offset == 0 and raw.startswith(BOM_UTF8):
                offset, raw = len(BOM_UTF8), raw[len(BOM_UTF8) :]
            if (record := self._maker.make(offset, raw)) is None:
                if not raw.isspace():
                    self.left_out[why_no_row(raw)] += 1
            elif record.kind == "rollout" and not self._seen.add(record.key):
                self.left_out[REPEATED] += 1
            else:
                records.add(record.content)
        self._keep(stream, records, end)

    def _keep(self, stream: BinaryIO, records: "Batch", end: int) -> None:
        content = records.take()
        self.columns.extend(content)
        self.size = end
        self._state = State.of(stream.fileno(), end)
        self._file.append(self.columns, content, self._state)


def open_index(path: Path) -> Index:
    """The index of a file of rollouts, for a reader: the one beside it where that is valid. Where
    there is none it is kept in the user's cache folder, unless the file is small."""
    is_small = path.stat().st_size < SMALL
    return Index(path, "rollout", None if is_small else cache_path(path), OutputPaths(path).index)


def cache_path(path: Path) -> Path | None:
    """Where a reader without the output's lock keeps its index of a file; None for nowhere."""
    name = blake2b(os.fsencode(path.resolve()), digest_size=12).hexdigest()
    folder = cache_folder()
    return folder and folder / "index" / f"{name}.index"
