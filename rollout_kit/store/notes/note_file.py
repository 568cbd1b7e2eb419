"""A file of notes about rollouts, beside an output. Lines are only appended."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import OutputError
from ...reading import parse_line, read_lines
from ...types import JsonObject
from ..lines import dump_line


class NoteFile(ABC):
    """Its lines, read again when the file has changed. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._lock = threading.Lock()
        """Held by the thread that reads or appends."""

    @abstractmethod
    def _read(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Hold what these lines say, and nothing else."""

    def refresh(self) -> bool:
        """Read the file if it has changed; True if so. OutputError if it cannot be read."""
        with self._lock:
            try:
                if (seen := self._state()) == self._seen:
                    return False
                self._read(parse_line(raw) or {} for _, raw in read_lines(self.path))
            except OSError as error:
                raise OutputError(f"{self.path}: cannot be read: {error.strerror}") from None
            self._seen = seen
            return True

    def _state(self) -> tuple[int, int, int] | None:
        """Whether two states are equal tells whether the file has changed."""
        with suppress(FileNotFoundError):
            found = self.path.stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        return None

    def _append(self, lines: Iterable[JsonObject]) -> None:
        """Write lines behind those of the file, and have them on disk; OutputError if that
        fails."""
        raw = b"".join(map(dump_line, lines))
        with self._lock:
            try:
                self.path.parent.mkdir(exist_ok=True)
                with self.path.open("a+b") as stream:
                    end = stream.tell()
                    if end and os.pread(stream.fileno(), 1, end - 1) != b"\n":
                        raw = b"\n" + raw  # behind a line that was cut: both would be unreadable
                    stream.write(raw)
                    stream.flush()
                    os.fsync(stream.fileno())
            except OSError as error:
                raise OutputError(f"cannot write {self.path}: {error.strerror}") from None
