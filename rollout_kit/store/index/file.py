"""The file of an index: chunks that are only appended, so that a cut loses the last one at most.

A chunk is a kind, the number of its bytes, their CRC-32, and the bytes. `T` holds new texts and
columns, `R` records, and `S` the state of the indexed file up to which the records before it go.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import orjson

from .columns import Columns, Score

MAGIC = b"rollout index 1\n"

CHUNK = struct.Struct("<cII")

EDGE = 4096
"""Bytes at the start and before the end of the indexed part that are compared."""


class State(NamedTuple):
    """What a file was when the first `size` bytes of it were indexed."""

    size: int
    inode: int
    mtime_ns: int
    head: int
    tail: int

    @classmethod
    def of(cls, stream: BinaryIO, size: int) -> "State":
        found = os.fstat(stream.fileno())
        return cls(size, found.st_ino, found.st_mtime_ns, *_edges(stream, size))

    def holds_for(self, stream: BinaryIO) -> bool:
        """Whether the indexed part is unchanged, as far as time, size and both ends tell."""
        found = os.fstat(stream.fileno())
        if found.st_size < self.size:
            return False
        if found.st_size == self.size and found.st_mtime_ns != self.mtime_ns:
            return False
        return _edges(stream, self.size) == (self.head, self.tail)


def _edges(stream: BinaryIO, size: int) -> tuple[int, int]:
    descriptor, edge = stream.fileno(), min(EDGE, size)
    tail = os.pread(descriptor, edge, size - edge)
    return crc32(os.pread(descriptor, edge, 0)), crc32(tail)


@dataclass(slots=True)
class IndexFile:
    """Writes an index as it grows; without a path it is kept nowhere."""

    path: Path | None
    num_texts: dict[str, int] = field(default_factory=dict)
    num_scores: int = 0
    flags: set[str] = field(default_factory=set)
    _stream: BinaryIO | None = None

    def load(self, columns: Columns) -> State | None:
        """Read the file into `columns`; None if there is nothing to use. What comes after the last
        state is cut off."""
        state, end = None, 0
        with suppress(OSError, ValueError, KeyError, TypeError):
            raw = self.path.read_bytes() if self.path else b""
            held: list[tuple[bytes, memoryview]] = []
            for kind, content, after in _chunks(raw):
                held.append((kind, content))
                if kind == b"S":
                    for each, part in held:
                        _take(columns, each, part)
                    held, end = [], after
                    state = State(**orjson.loads(content))
        self._note(columns)
        if self.path:
            self._open(end if state else 0)
        return state

    def append(self, columns: Columns, records: bytes, state: State) -> None:
        """Append the records and the texts and columns that are new; a failure ends the writing:
        an index is not worth an error."""
        if self._stream is None:
            return
        scores = [tuple(each) for each in columns.scores[self.num_scores :]]
        new: dict[str, Any] = {"scores": scores}
        new["texts"] = {
            name: column.names[self.num_texts.get(name, 1) :]
            for name, column in columns.texts.items()
            if len(column.names) > self.num_texts.get(name, 1)
        }
        new["flags"] = sorted(columns.flags)
        parts = [_chunk(b"R", records), _chunk(b"S", orjson.dumps(state._asdict()))]
        if new["texts"] or new["scores"] or columns.flags != self.flags:
            parts.insert(0, _chunk(b"T", orjson.dumps(new)))
        self._note(columns)
        try:
            self._stream.write(b"".join(parts))
            self._stream.flush()
        except OSError:
            self.close()

    def reset(self) -> None:
        """Begin anew with an empty file."""
        self.num_texts, self.num_scores, self.flags = {}, 0, set()
        if self.path:
            self._open(0)

    def close(self) -> None:
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
            self._stream = None

    def _note(self, columns: Columns) -> None:
        self.num_texts = {name: len(column.names) for name, column in columns.texts.items()}
        self.num_scores = len(columns.scores)
        self.flags = set(columns.flags)

    def _open(self, end: int) -> None:
        """Open for appending at `end`, cutting off the rest; at 0 with a new file beside others'
        open ones."""
        assert self.path is not None
        self.close()
        try:
            if not end:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.path.unlink(missing_ok=True)
            self._stream = self.path.open("r+b" if end else "xb")
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if end:
                self._stream.truncate(end)
                self._stream.seek(end)
            else:
                self._stream.write(MAGIC)
        except OSError:  # another process writes it, or it cannot be written
            self.close()


def _take(columns: Columns, kind: bytes, content: memoryview) -> None:
    """Add the content of a chunk to the columns."""
    if kind == b"R":
        columns.extend(content)
    elif kind == b"T":
        new = orjson.loads(content)
        for name, is_text in new["scores"]:
            columns.add_score(Score(name, is_text))
        for name, texts in new["texts"].items():
            for text in texts:
                columns.texts[name].add(text)
        columns.flags = set(new["flags"])


def _chunks(raw: bytes) -> Iterator[tuple[bytes, memoryview, int]]:
    """(kind, content, offset after it) of each chunk, up to the first that is damaged."""
    if not raw.startswith(MAGIC):
        return
    at, view = len(MAGIC), memoryview(raw)
    while at + CHUNK.size <= len(raw):
        kind, size, check = CHUNK.unpack_from(raw, at)
        content = view[at + CHUNK.size : at + CHUNK.size + size]
        if len(content) < size or crc32(content) != check:
            return
        at += CHUNK.size + size
        yield kind, content, at


def _chunk(kind: bytes, content: bytes) -> bytes:
    return CHUNK.pack(kind, len(content), crc32(content)) + content
