"""Standard output that never holds up the event loop, nor raises: from a thread of its own.

A pager, a stopped terminal or a reader that has left must not stop the servers. What nobody takes
is dropped, oldest first; the servers' logs have it.
"""

import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TextIO

MAX_WAITING = 10_000
"""Lines that wait for a slow reader."""

FLUSH_S = 1.0
"""Time for the last lines at the end."""


class Console:
    """Prints lines in the order they come, until `close`."""

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
        """Give what waits a moment to be read."""
        self._waiting.append(None)
        self._some.release()
        self._thread.join(FLUSH_S)

    def _write(self) -> None:
        # a closed reader or stream: there is nobody to tell
        with suppress(OSError, ValueError):
            while True:
                self._some.acquire()
                if not self._waiting:
                    continue  # what this stood for was dropped
                line = self._waiting.popleft()
                if line is None:
                    return
                self._out.write(f"{line}\n")
                self._out.flush()
