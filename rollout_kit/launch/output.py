"""What a server process says: secrets masked, kept in a file, the last lines at hand, and shown."""

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigError
from ..secrets import mask

QUIET, ALOUD = "\x0e", "\x0f"
"""First character of a line that is for the log alone, and of one that people are told in any
case."""

TAIL_LINES = 30
"""Last lines that an error about the process can show."""

MAX_FILE_BYTES = 32 << 20
"""A larger log is put aside as `.1`, so that weeks of a talkative engine cannot fill the disk."""


class Output:
    """Takes the lines of one label's processes, one after another.

    ConfigError where the file cannot be written.
    """

    def __init__(
        self,
        label: str,
        *,
        path: Path | None = None,
        secrets: Iterable[str] = (),
        show: Callable[[str, str], None] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.path = path
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._label = label
        self._secrets = frozenset(secrets)
        self._show = show
        self._tell = tell
        self._file: int | None = None
        self._size = 0
        if path:
            try:
                self._open(path)
            except OSError as error:
                raise ConfigError(
                    f"cannot write the log {path}: {error.strerror}; choose another folder with"
                    " +log_dir=…, or none with +log_dir=null"
                ) from None

    def take(self, raw: bytes) -> None:
        """One line as it came through the pipe."""
        line = mask(raw.decode("utf-8", "replace").rstrip(), self._secrets)
        loudness, line = line[:1], line.lstrip(QUIET + ALOUD)
        self.tail.append(line)
        self._keep(f"{line}\n".encode())
        if self._show and loudness != QUIET:
            self._show(self._label, line)
        elif loudness == ALOUD:
            self._tell(f"({self._label}) {line}")

    def note(self, line: str) -> None:
        """A line about the process, into its file."""
        self._keep(f"{line}\n".encode())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _keep(self, line: bytes) -> None:
        if self.path is None:
            return
        with suppress(OSError):  # a full disk must not take the servers down
            if self._size + len(line) > MAX_FILE_BYTES:
                self.close()
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            if self._file is None:
                self._open(self.path)
            if self._file is not None:
                self._size += os.write(self._file, line)

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._size = os.fstat(self._file).st_size
