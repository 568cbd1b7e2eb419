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
    _end: int = 0
    """Bytes of the file that count."""
    _stream: BinaryIO | None = None

    def load(self, columns: Columns) -> State | None:
        """Read the file into `columns`; None if there is nothing to use."""
        state = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            raw = self.path.read_bytes() if self.path else b""
            held: list[tuple[bytes, memoryview]] = []
            for kind, content, after in _chunks(raw):
                held.append((kind, content))
                if kind == b"S":
                    for each, part in held:
                        _take(columns, each, part)
                    held, self._end = [], after
                    state = State(**orjson.loads(content))
        self._note(columns)
        return state

    def append(self, columns: Columns, records: bytes, state: State) -> None:
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
