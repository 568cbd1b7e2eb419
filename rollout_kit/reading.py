"""Reads files that a user names, without trusting that they are files, or have lines.

A device or a socket is refused. A line that is too long ends the reading with an error before more
of it is in memory, also if it is compressed. `sync_folder` is for those who write such a file.
"""

import os
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from errno import EINVAL
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Protocol

import orjson

from .errors import ConfigError
from .types import JsonObject

MAX_LINE = 256 << 20
"""Bytes of the longest line. The largest reply of a model is as large."""

MAX_STORED = 1 << 30
"""Bytes of the longest line that we write: a rollout holds the replies of all its turns."""

PIECE = 1 << 20
"""Bytes of a line that are read at once."""

AT_ONCE = 1 << 18
"""Bytes per read of a file of lines; large, so that few lines lie across two reads."""

SMALL = 32 << 20
"""Bytes of a file that Python may read line by line. It needs twice the size of a line."""

MAX_TEXT = 64 << 20
"""Bytes of the largest file that is read as a whole."""

KINDS = {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


class Lines(Protocol):
    """A binary stream: a file, or one that decompresses."""

    def readline(self, size: int, /) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...
    def tell(self) -> int: ...
    def seek(self, offset: int, /) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class Writer(Protocol):
    def write(self, piece: bytes, /) -> object: ...


class LineTooLong(ConfigError):
    """A line is longer than `limit` bytes."""

    def __init__(self, name: str, place: str, limit: int) -> None:
        super().__init__(
            f"{name}: {place} is longer than {limit:,} bytes. Each line must hold one JSON"
            " object: check that the file has line ends, and shorten or remove that line"
        )


def check_kind(path: Path) -> None:
    """Raise ConfigError for a device or a socket: reading a device may never end. /dev/null is an
    empty file."""
    with suppress(OSError):  # opening it will say why
        kind = KINDS.get(stat.S_IFMT((found := path.stat()).st_mode))
        if kind and not os.path.samestat(found, os.stat(os.devnull)):
            raise ConfigError(f"{path}: is {kind}, and no file: name a file or a pipe")


def open_file(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a file or a pipe; ConfigError for a device or a socket."""
    check_kind(path)
    return path.open("rb", buffering)


def iterate_lines(stream: Lines, limit: int = MAX_LINE) -> Iterator[bytes]:
    """The lines of a stream from where it is; LineTooLong before one is in memory that is longer
    than the bound. A long line of a file is in memory once, also while it is read. A small file is
    read as fast as Python can."""
    return iter(stream) if _is_small(stream, min(limit, SMALL)) else _check_each(stream, limit)


def _is_small(stream: Lines, limit: int) -> bool:
    if not isinstance(stream, BufferedReader):
        return False
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # a stream without a file
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= limit


def _check_each(stream: Lines, limit: int) -> Iterator[bytes]:
    for raw in iter(partial(stream.readline, PIECE), b""):
        yield raw if len(raw) < PIECE or raw.endswith(b"\n") else _finish_line(raw, stream, limit)


def _finish_line(begun: bytes, stream: Lines, limit: int) -> bytes:
    if isinstance(stream, BufferedReader) and stream.seekable():
        return _read_long(stream, len(begun), limit)
    line = bytearray(begun)
    while len(line) <= limit and not line.endswith(b"\n") and (piece := stream.readline(PIECE)):
        line += piece
    if len(line) <= limit:
        return bytes(line)
    size = len(line)
    line.clear()
    raise LineTooLong(str(getattr(stream, "name", "the input")), _place(stream, size), limit)


def _read_long(stream: BufferedReader, begun: int, limit: int) -> bytes:
    """The line of which so many bytes are read. It is read again once its size is known."""
    start, size = stream.tell() - begun, begun
    while size <= limit and (piece := stream.readline(PIECE)):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    if size > limit:
        raise LineTooLong(str(stream.name), _place(stream, size), limit)
    stream.seek(start)
    return stream.read(size)


def _place(stream: Lines, size: int) -> str:
    """Which line the stream is in, of which it has read `size` bytes. A pipe cannot say."""
    try:
        offset = stream.tell() - size
        stream.seek(0)
        return _describe(1 + _count_lines(stream, offset), offset)
    except OSError:
        return "a line"


def line_number(path: Path, offset: int) -> int:
    """The number of the line that begins at an offset, from 1."""
    with path.open("rb") as stream:
        return 1 + _count_lines(stream, offset)


def _count_lines(stream: Lines, size: int) -> int:
    """The lines in the next bytes of a stream."""
    number = 0
    while size and (piece := stream.read(min(size, PIECE))):
        number, size = number + piece.count(b"\n"), size - len(piece)
    return number


def _describe(number: int, offset: int) -> str:
    return f"line {number}, which begins at byte {offset:,},"


def read_whole(path: Path) -> bytes:
    """All of a file; ConfigError if it is larger than `MAX_TEXT`."""
    with open_file(path) as stream:
        raw = stream.read(MAX_TEXT + 1)
    if len(raw) > MAX_TEXT:
        raise ConfigError(f"{path}: is larger than {MAX_TEXT:,} bytes: name another file")
    return raw


def copy_lines(name: str, source: BinaryIO, target: Writer) -> None:
    """Copy the stream of that name; LineTooLong where a line has no end."""
    number, offset, length = 1, 0, 0
    while piece := source.read(PIECE):
        target.write(piece)
        if (end := piece.rfind(b"\n")) >= 0:
            number, offset = number + piece.count(b"\n"), offset + length + end + 1
            length = len(piece) - end - 1
        else:
            length += len(piece)
        if length > MAX_LINE:
            raise LineTooLong(name, _describe(number, offset), MAX_LINE)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that is not blank."""
    try:
        with open_file(path, AT_ONCE) as stream:
            yield from number_bytes(stream)
    except FileNotFoundError:
        return


def number_bytes(stream: Lines, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every line that is not blank; `offset` is that of the first. A byte order
    mark at the start of a file belongs to no line."""
    for raw in iterate_lines(stream, MAX_STORED):
        if offset == 0 and raw.startswith(BOM_UTF8):
            offset, raw = len(BOM_UTF8), raw.removeprefix(BOM_UTF8)
        if raw and not raw.isspace():
            yield offset, raw
        offset += len(raw)


def parse_line(raw: bytes) -> JsonObject | None:
    """The JSON object that a line is; None if it is none."""
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def read_object(path: Path) -> JsonObject:
    """The JSON object that a file is; empty if there is none."""
    try:
        return parse_line(path.read_bytes()) or {}
    except OSError:
        return {}


def last_line(descriptor: int, size: int) -> bytes:
    """The bytes after the last newline."""
    tail = b""
    block = 1 << 16
    while size - len(tail) > 0:
        start = max(0, size - len(tail) - block)
        chunk = os.pread(descriptor, size - len(tail) - start, start)
        newline = chunk.rfind(b"\n")
        if newline >= 0:
            return chunk[newline + 1 :] + tail
        tail = chunk + tail
    return tail


def line_at(descriptor: int, offset: int) -> bytes:
    """The line that begins at an offset."""
    raw = b""
    while b"\n" not in raw:
        chunk = os.pread(descriptor, 1 << 16, offset + len(raw))
        if not chunk:
            return raw + b"\n"
        raw += chunk
    return raw[: raw.index(b"\n") + 1]


def sync_folder(path: Path) -> None:
    """Force the folder's entry of a file to disk, where the file system can."""
    with suppress(PermissionError, FileNotFoundError):
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != EINVAL:
                raise
        finally:
            os.close(descriptor)


def cache_folder() -> Path | None:
    """Where readers keep what they have derived from files; None without a home folder, as under a
    user id that the system does not know."""
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout_kit"
    return None
