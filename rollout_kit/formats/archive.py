"""Reads members of a zip archive, without trusting it: each is bounded before it is in memory."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import ConfigError
from ..reading import MAX_LINE, check_kind
from ..store.input import import_zstd

ZSTD = 93
"""Compression that zipfile knows from Python 3.14 on, and inspect writes."""

LOCAL_HEADER = 30
"""Bytes of a member's own header, without its name and extra field."""

BROKEN = (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, struct.error)


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive; ConfigError if it is damaged or cut off."""
    check_kind(path)
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except BROKEN as error:
        raise ConfigError(
            f"{path}: is no whole zip archive ({error}): was it cut off while it was copied?"
        ) from None


def read_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """A member's content; ConfigError if it is longer than `MAX_LINE` or damaged."""
    if member.compress_type != ZSTD:
        with archive.open(member) as stream:
            return _read(path, member, stream)
    zstd = import_zstd()
    with path.open("rb") as file:
        file.seek(member.header_offset)
        sizes = struct.unpack("<HH", file.read(LOCAL_HEADER)[26:])
        file.seek(sum(sizes), 1)
        packed = _Part(file, member.compress_size)
        try:
            with zstd.open(cast(Any, packed), "rb") as stream:
                found = _read(path, member, stream)
        except zstd.ZstdError as error:
            raise zipfile.BadZipFile(f"{member.filename}: {error}") from None
    if zlib.crc32(found) != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename}: wrong checksum")
    return found


def _read(path: Path, member: zipfile.ZipInfo, stream: Any) -> bytes:
    found = stream.read(MAX_LINE + 1)
    if len(found) > MAX_LINE:
        raise ConfigError(
            f"{path}: {member.filename} has more than {MAX_LINE:,} bytes: no such sample is read"
        )
    return found


class _Part:
    """The next bytes of a file as a file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        found = self._file.read(wanted)
        self._left -= len(found)
        return found
