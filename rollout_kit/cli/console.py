"""Print from a thread, so that standard output never blocks or stops the event loop.

A pager, a stopped terminal or a closed pipe must not stop the servers. Lines that are not read are
dropped, oldest first; the servers' logs are complete.
"""

import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TextIO

MAX_WAITING = 10_000
"""Lines kept for a slow reader."""

FLUSH_S = 1.0
"""Time limit for the last lines at the end."""


class Console:
    """Prints lines in order, until `close`."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        if hasattr(self._out, "reconfigure"):
            self._out.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
        self._waiting: deque[str | None] = deque(maxlen=MAX_WAITING)
        self._some = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        self._waiting.append(line)
        self._some.release()

    def close(self) -> None:
        """Print the remaining lines, within a time limit."""
        self._waiting.append(None)
        self._some.release()
        self._thread.join(FLUSH_S)

    def _write(self) -> None:
        # the pipe or stream was closed
        with suppress(OSError, ValueError):
            while True:
                self._some.acquire()
                if not self._waiting:
                    continue  # its line was dropped
                line = self._waiting.popleft()
                if line is None:
                    return
                self._out.write(f"{line}\n")
                self._out.flush()
