"""The file of an index: chunks that are only appended, so that a cut loses the last one at most.

A chunk is a kind, the number of its bytes, their CRC-32, and the bytes. `T` holds new texts and
columns, `R` records, `O` the offsets of lines that a record does not tell, `I` what is known of an
input, and `S` the state of the indexed file up to which the chunks before it go.
"""

import fcntl
import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import orjson

from ..foreign.versions import SCHEMA
from .columns import Columns, Score

MAGIC = b"rollout index 4 of schema %d\n" % SCHEMA
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
    def of(cls, descriptor: int, size: int) -> "State":
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
    odd: "array[int]" = field(default_factory=lambda: array("Q"))
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
        odd: "array[int] | None" = None,
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


def cache_folder() -> Path | None:
    """Where readers keep what they have derived from files; None without a home folder, as under a
    user id that the system does not know."""
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout_kit"
    return None
