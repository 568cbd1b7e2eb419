"""The file behind a buffer in memory: what was put and what has left, one line each.

A line is one write, so a kill can tear only the last one. Opening the file leaves out what has
left.
"""

import fcntl
import os
from pathlib import Path
from typing import Any

import orjson

from ...errors import OutputError
from ...reading import parse_line, read_lines
from ...store.files import write_atomically
from .group import BufferedGroup
from .shelf import Shelf

SPARE_BYTES = 64 << 20
"""The file is written anew when it holds this much more than what waits."""


class Spool:
    """One process at a time has it open."""

    def __init__(self, path: Path) -> None:
        self.path = path = path.expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{path}: another process has this spool open") from None
        except OSError as error:
            raise OutputError(f"{path}: cannot open the spool: {error.strerror}") from None
        self._shelf: Shelf | None = None
        self._file = -1
        self._size = self._live = 0
        self._is_behind = False
        """Whether a change is not written, or not whole."""

    def restore(self, shelf: Shelf) -> None:
        """Put on the shelf what the file holds, and follow it from now on."""
        for _, raw in read_lines(self.path):
            for kind, values in (parse_line(raw) or {}).items():
                apply_change(shelf, kind, *values)
        shelf.begin_again()
        self._shelf = shelf
        self._compact()

    def append(self, kind: str, *values: Any) -> None:
        if self._file < 0:
            return
        raw, self._is_behind = format_change(kind, *values), True
        try:
            num_written = os.write(self._file, raw)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot write the spool: {error.strerror}") from None
        if num_written < len(raw):
            raise OutputError(f"{self.path}: cannot write the spool: the disk is full")
        self._is_behind = False
        self._size += len(raw)
        if self._size > 2 * self._live + SPARE_BYTES:
            self._compact()

    def catch_up(self) -> None:
        """Write what a failed write lacks; OutputError as long as that is not possible."""
        if self._is_behind:
            self._compact()
            self._is_behind = False

    def close(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _compact(self) -> None:
        """Write the file anew, with nothing but what the shelf has now."""
        assert self._shelf is not None
        content = format_change("shelf", self._shelf.save())
        write_atomically(self.path, content)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._size = self._live = len(content)


def format_change(kind: str, *values: Any) -> bytes:
    """A change as a line of JSON."""
    return orjson.dumps({kind: values}, option=orjson.OPT_APPEND_NEWLINE)


def apply_change(shelf: Shelf, kind: str, *values: Any) -> None:
    """Make a change again, by a name and values that a shelf has noted."""
    match kind, *values:
        case "shelf", state:
            shelf.restore(state)
        case ("full",):
            shelf.dropped["full"] += 1
        case "version", version:
            shelf.set_version(version)
        case "put", group, size, uses:
            shelf.add(BufferedGroup.decode(group), size, uses)
            shelf.counts["put"] += 1
        case ("use", key) | ("left", key, "acked"):
            shelf.use(key)
        case "left", key, reason:
            shelf.dropped[reason] += 1
            shelf.settle(key, reason)
