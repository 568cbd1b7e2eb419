"""Columns of the lines of one file: in memory about 150 bytes a line, and as the file of an index.

The file holds chunks that are only appended, so that a cut loses the last one at most.

A chunk is a kind, the number of its bytes, their CRC-32, and the bytes. `T` holds new texts and
columns, `R` records, `O` the offsets of lines that a record does not tell, `I` what is known of an
input, and `S` the state of the indexed file up to which the chunks before it go.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
from array import array
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import orjson

from ..types import JsonObject
from .head import COUNT_COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS
from .kinds import SCHEMA

COUNTS = ("task_index", "rollout_index", *COUNT_COLUMNS)
"""Columns of whole numbers; exact below 2**24."""

NUMBERS = (*NUMBER_COLUMNS, "reward", "started_s")
"""Columns of 64-bit numbers. `started_s` is in seconds since 1970, UTC."""

GIVEN = ("kind", "agent", "scope", *TEXT_COLUMNS, "failure", "id_text")
TEXTS = GIVEN if (len(GIVEN) + len(COUNTS)) % 2 == 0 else (*GIVEN, "unused")
"""Columns of short texts. `failure` is the class of an error; `id_text` is a task id that is no
16-digit hexadecimal number; `unused` keeps the columns behind it aligned."""

HEAD_SIZE = 24 + 4 * (len(TEXTS) + len(COUNTS)) + 8 * len(NUMBERS)
"""Bytes of a record before the fields that the verifier set: an offset, a length, a checksum and
the task in 24 bytes, then the three groups of columns."""


EVERY: Container[str] = frozenset(("length", "check", "score", *TEXTS, *COUNTS, *NUMBERS))
"""What `Columns` takes from records, beside offsets and tasks."""


MAX_TEXTS = 100_000
"""Distinct texts that a column keeps."""


MAX_TEXT = 200
"""Characters of the longest text that a column keeps."""


LEFT_OUT = "…"
"""Stands for a text that a column does not keep: read the line."""


NAN = math.nan


_NO_NUMBER = struct.pack("<d", NAN)


class Score(NamedTuple):
    """A column of a field that the verifier set. One field has two, if some of its values are
    numbers and some are texts."""

    name: str
    is_text: bool


class TextColumn:
    """Texts as codes; code 0 is None."""

    def __init__(self, num_empty: int = 0) -> None:
        self.codes = array("I", bytes(4 * num_empty))
        self.names: list[str | None] = [None]
        self._codes: dict[str, int] = {}

    @property
    def is_partial(self) -> bool:
        """Whether some texts were left out."""
        return LEFT_OUT in self._codes

    def code_of(self, text: str | None) -> int:
        if text is None:
            return 0
        if (code := self._codes.get(text)) is None:
            if len(text) > MAX_TEXT or len(self.names) > MAX_TEXTS:
                text = LEFT_OUT
            if (code := self._codes.get(text)) is None:
                code = self.add(text)
        return code

    def add(self, text: str) -> int:
        code = self._codes[text] = len(self.names)
        self.names.append(text)
        return code

    def __getitem__(self, row: int) -> str | None:
        return self.names[self.codes[row]]


@dataclass(slots=True)
class Columns:
    """The lines of a file by row number. A number that a line lacks is NaN.

    `wanted`: the columns that are taken from records; the others stay empty.
    """

    wanted: Container[str] = EVERY
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    checks: array[int] = field(default_factory=lambda: array("I"))
    """CRC-32 of each line."""
    tasks: array[int] = field(default_factory=lambda: array("Q"))
    texts: dict[str, TextColumn] = field(
        default_factory=lambda: {name: TextColumn() for name in TEXTS}
    )
    numbers: dict[str, array[float]] = field(
        default_factory=lambda: {
            **{name: array("f") for name in COUNTS},
            **{name: array("d") for name in NUMBERS},
        }
    )
    scores: list[Score] = field(default_factory=list)
    """In the order in which a record holds them, after its head."""
    flags: set[str] = field(default_factory=set)
    """Scores whose numbers are all true or false."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def width(self) -> int:
        """Bytes of a record."""
        return HEAD_SIZE + 8 * len(self.scores)

    def add_score(self, score: Score) -> None:
        """Add a column that is empty so far."""
        self.scores.append(score)
        number = len(self) if "score" in self.wanted else 0
        if score.is_text:
            self.texts[score.name] = TextColumn(number)
        else:
            self.numbers[score.name] = array("d", [NAN]) * number

    def empty_scores(self, width: int) -> bytes:
        """What a record of `width` bytes lacks to hold the columns that were added since."""
        added = self.scores[(width - HEAD_SIZE) // 8 :]
        return b"".join(bytes(8) if score.is_text else _NO_NUMBER for score in added)

    def extend(self, records: bytes | memoryview) -> None:
        """Append records of `width` bytes each."""
        width, view = self.width, memoryview(records)
        whole, half = view.cast("Q"), view.cast("I")
        single, double = view.cast("f"), view.cast("d")
        at8, at4 = width // 8, width // 4
        wanted = self.wanted
        if "length" in wanted:
            self.lengths.frombytes(half[2::at4].tobytes())
        if "check" in wanted:
            self.checks.frombytes(half[3::at4].tobytes())
        self.tasks.frombytes(whole[2::at8].tobytes())
        for place, name in enumerate(TEXTS, 6):
            if name in wanted:
                self.texts[name].codes.frombytes(half[place::at4].tobytes())
        for place, name in enumerate(COUNTS, 6 + len(TEXTS)):
            if name in wanted:
                self.numbers[name].frombytes(single[place::at4].tobytes())
        first = HEAD_SIZE // 8
        for place, name in enumerate(NUMBERS, first - len(NUMBERS)):
            if name in wanted:
                self.numbers[name].frombytes(double[place::at8].tobytes())
        for place, score in enumerate(self.scores if "score" in wanted else (), first):
            if score.is_text:
                self.texts[score.name].codes.frombytes(half[2 * place :: at4].tobytes())
            else:
                self.numbers[score.name].frombytes(double[place::at8].tobytes())
        # last: another thread may read the rows that `len` counts
        self.offsets.frombytes(whole[0::at8].tobytes())

    def drop_rows(self) -> None:
        """Forget the rows, and keep what further records need."""
        for column in (self.offsets, self.lengths, self.checks, self.tasks):
            del column[:]
        for text in self.texts.values():
            del text.codes[:]
        for numbers in self.numbers.values():
            del numbers[:]

    def task_id(self, row: int) -> str:
        return self.texts["id_text"][row] or f"{self.tasks[row]:016x}"

    def names(self) -> Iterator[str]:
        """The names of all columns that may hold something."""
        for name in (*NUMBERS, *COUNTS, *TEXTS):
            if name not in ("unused", "id_text"):
                yield name
        yield from dict.fromkeys(score.name for score in self.scores)

    def value(self, name: str, row: int) -> float | bool | str | None:
        """The value of a column, as JSON would hold it."""
        if (text := self.texts.get(name)) is not None and (found := text[row]) is not None:
            return found
        if (numbers := self.numbers.get(name)) is None or math.isnan(number := numbers[row]):
            return None
        if name in self.flags:
            return bool(number)
        if number.is_integer() and abs(number) < 2**53:
            return int(number)
        return float(f"{number:.7g}") if numbers.typecode == "f" else number

    def fields(self, row: int, names: Sequence[str]) -> JsonObject:
        return {name: self.value(name, row) for name in names}


class Batch:
    """Records that wait to be written: all as wide as the columns are by now."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._records: list[bytes] = []
        self._width = columns.width

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: bytes) -> None:
        if len(record) != self._width:
            self._widen()
        self._records.append(record)

    def take(self) -> bytes:
        """The records, which it forgets."""
        self._widen()
        records, self._records = self._records, []
        return b"".join(records)

    def _widen(self) -> None:
        """Give the records the columns that were added since."""
        if (width := self._columns.width) != self._width:
            empty = self._columns.empty_scores(self._width)
            self._records = [each + empty for each in self._records]
            self._width = width


LAYOUT = crc32(repr((TEXTS, COUNTS, NUMBERS)).encode())
MAGIC = b"rollout index 5 of schema %d, columns %08x\n" % (SCHEMA, LAYOUT)
"""A record does not tell the schema of its line. So an index counts only for the version of the
layout that it was made with."""

CHUNK = struct.Struct("<cII")

EDGE = 4096
"""Bytes at the start and before the end of the indexed part that are compared."""

AT_ONCE = 1 << 20
"""Bytes of chunks that are taken in together."""


class State(NamedTuple):
    """What a file was when the first `size` bytes of it were indexed."""

    size: int
    inode: int
    mtime_ns: int
    head: int
    tail: int

    @classmethod
    def of(cls, descriptor: int, size: int) -> State:
        found = os.fstat(descriptor)
        return cls(size, found.st_ino, found.st_mtime_ns, *_edges(descriptor, size))

    def holds_for(self, descriptor: int) -> bool:
        """Whether the indexed part is unchanged, as far as inode, time, size and both ends tell."""
        found = os.fstat(descriptor)
        if found.st_ino != self.inode or found.st_size < self.size:
            return False
        if found.st_size == self.size and found.st_mtime_ns != self.mtime_ns:
            return False
        return _edges(descriptor, self.size) == (self.head, self.tail)


def _edges(descriptor: int, size: int) -> tuple[int, int]:
    edge = min(EDGE, size)
    tail = os.pread(descriptor, edge, size - edge)
    return crc32(os.pread(descriptor, edge, 0)), crc32(tail)


@dataclass(slots=True)
class IndexFile:
    """Writes an index as it grows; without a path it is kept nowhere."""

    path: Path | None
    num_texts: dict[str, int] = field(default_factory=dict)
    num_scores: int = 0
    flags: set[str] = field(default_factory=set)
    odd: array[int] = field(default_factory=lambda: array("Q"))
    """Offsets of the lines that have to be read themselves, as far as they were loaded."""
    input: bytes = b""
    """What the last run knew of its input."""
    _end: int = 0
    """Bytes of the file that count."""
    _stream: BinaryIO | None = None

    @property
    def is_begun(self) -> bool:
        """Whether there is something in it."""
        return self._end > 0

    def load(self, columns: Columns) -> State | None:
        """Read the file into `columns`; None, with `columns` in any state, if there is nothing to
        use."""
        self.reset()
        try:
            state = self._load(columns)
        except (OSError, ValueError, KeyError, TypeError):
            state = None
        if state is None:
            self.reset()
        self._note(columns)
        return state

    def _load(self, columns: Columns) -> State | None:
        if self.path is None:
            return None
        held: list[tuple[bytes, bytes]] = []
        whole: list[tuple[bytes, bytes]] = []
        last, size = b"", 0
        with self.path.open("rb") as stream:
            for kind, content, after in _chunks(stream):
                held.append((kind, content))
                size += len(content)
                if kind == b"S":
                    whole, held, last, self._end = whole + held, [], content, after
                if size >= AT_ONCE and not held:
                    self._take(columns, whole)
                    whole, size = [], 0
        self._take(columns, whole)
        return State(**orjson.loads(last)) if last else None

    def _take(self, columns: Columns, chunks: list[tuple[bytes, bytes]]) -> None:
        """Add the content of chunks to the columns."""
        records: list[bytes] = []
        for kind, content in chunks:
            if kind == b"R":
                records.append(content)
            elif kind == b"I":
                self.input = content
            elif kind == b"O":
                self.odd.frombytes(content)
            elif kind == b"T":
                columns.extend(b"".join(records))
                records = []
                new = orjson.loads(content)
                for name, is_text in new["scores"]:
                    columns.add_score(Score(name, is_text))
                for name, texts in new["texts"].items():
                    for text in texts:
                        columns.texts[name].add(text)
                columns.flags = set(new["flags"])
        columns.extend(b"".join(records))

    def append(
        self,
        columns: Columns,
        records: bytes,
        state: State,
        odd: array[int] | None = None,
        input: bytes = b"",
    ) -> None:
        """Append the records and the texts and columns that are new; a failure ends the writing:
        an index is not worth an error."""
        scores = [tuple(each) for each in columns.scores[self.num_scores :]]
        new: dict[str, Any] = {"scores": scores, "flags": sorted(columns.flags)}
        new["texts"] = {
            name: column.names[self.num_texts.get(name, 1) :]
            for name, column in columns.texts.items()
            if len(column.names) > self.num_texts.get(name, 1)
        }
        parts = [_chunk(b"R", records), _chunk(b"S", orjson.dumps(state._asdict()))]
        if new["texts"] or new["scores"] or columns.flags != self.flags:
            parts.insert(0, _chunk(b"T", orjson.dumps(new)))
        if odd:
            parts.insert(0, _chunk(b"O", odd.tobytes()))
        if input:
            parts.insert(0, _chunk(b"I", input))
        self._note(columns)
        raw = b"".join(parts)
        try:
            if self._stream is None and self.path:
                self._stream = self._open(self.path)
            if self._stream is not None:
                self._stream.write(raw)
                self._stream.flush()
                self._end += len(raw)
        except OSError:  # another process writes it, or it cannot be written
            self.close()
            self.path = None

    def reset(self) -> None:
        """Begin anew with an empty file."""
        self.close()
        self.num_texts, self.num_scores, self.flags, self._end = {}, 0, set(), 0
        self.odd, self.input = array("Q"), b""

    def remove(self) -> None:
        """Remove the file; from now on the index is kept nowhere."""
        if self.path:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
        self.path = None

    def close(self) -> None:
        """Let others write; the next `append` opens the file again."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
            self._stream = None

    def _note(self, columns: Columns) -> None:
        self.num_texts = {name: len(column.names) for name, column in columns.texts.items()}
        self.num_scores = len(columns.scores)
        self.flags = set(columns.flags)

    def _open(self, path: Path) -> BinaryIO:
        """The file, locked, at the end of what was read or written of it; OSError if another
        process has it, or has begun it anew."""
        if not self._end:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.unlink(missing_ok=True)
        stream = path.open("r+b" if self._end else "xb")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._end:
                self._end = stream.write(MAGIC)
            elif stream.seek(0, os.SEEK_END) < self._end:
                raise OSError(f"{path} is shorter than it was")
            stream.truncate(self._end)
            stream.seek(self._end)
        except OSError:
            stream.close()
            raise
        return stream


def _chunks(stream: BinaryIO) -> Iterator[tuple[bytes, bytes, int]]:
    """(kind, content, offset after it) of each chunk, up to the first that is damaged."""
    if stream.read(len(MAGIC)) != MAGIC:
        return
    at = len(MAGIC)
    while len(head := stream.read(CHUNK.size)) == CHUNK.size:
        kind, size, check = CHUNK.unpack(head)
        content = stream.read(size)
        if len(content) < size or crc32(content) != check:
            return
        at += CHUNK.size + size
        yield kind, content, at


def _chunk(kind: bytes, content: bytes) -> bytes:
    return CHUNK.pack(kind, len(content), crc32(content)) + content
