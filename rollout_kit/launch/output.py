"""The output of a server process: masked, written to a log, and shown."""

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigError
from ..secrets import mask

QUIET, ALOUD = "\x0e", "\x0f"
"""First character of a line for the log alone, and of a line that is always shown to people."""

BEGINS = "\x06"
"""The line of a server that begins to accept requests; it is not shown."""

TAIL_LINES = 30
"""Last lines that are kept for error messages."""

MAX_FILE_BYTES = 32 << 20
"""A larger log is renamed to `.1`, so that a long run cannot fill the disk."""


class Output:
    """The output of the processes that run one after another under `label`.

    Raises ConfigError if the log cannot be written.
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
        self.has_begun = False
        """Whether the process has begun to accept requests."""
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

    def renew(self) -> None:
        """Another process starts."""
        self.tail.clear()
        self.has_begun = False

    def take(self, raw: bytes) -> None:
        """Take one line of output."""
        if raw.rstrip() == BEGINS.encode():
            self.has_begun = True
            return
        line = mask(raw.decode("utf-8", "replace").rstrip(), self._secrets)
        loudness, line = line[:1], line.lstrip(QUIET + ALOUD)
        self.tail.append(line)
        self._keep(f"{line}\n".encode())
        if self._show and loudness != QUIET:
            self._show(self._label, line)
        elif loudness == ALOUD:
            self._tell(f"({self._label}) {line}")

    def note(self, line: str) -> None:
        """Write a line about the process to its log."""
        self._keep(f"{line}\n".encode())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _keep(self, line: bytes) -> None:
        if self.path is None:
            return
        with suppress(OSError):  # a full disk must not end the servers
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
