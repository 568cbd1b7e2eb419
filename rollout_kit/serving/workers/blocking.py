"""One worker process for code without an event loop: each call ends by its deadline.

As in `pool`, the function is named by the path of its file, arguments and results are JSON, and a
worker that passes its deadline is killed.
"""

import json
import socket
import subprocess
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from .pool import HEADER_SIZE, TOO_MUCH_CPU, WorkerDied, result_of, start_child

WALL_S = 60.0
"""Seconds on the clock for one call: more means that the worker waits for something."""


class BlockingWorker:
    """A process of `file`'s `function`, which starts with the first call, and ends when the object
    is no longer used. `deadline_s` is its CPU time for one call, `max_memory_mb` bounds its address
    space. Threads take turns."""

    def __init__(
        self, file: Path, function: str, *, deadline_s: float = 1.0, max_memory_mb: int = 1024
    ) -> None:
        self.deadline_s = deadline_s
        self._child = _Child([str(file), function, str(max_memory_mb), "1"])
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, self._child.end)

    def call(self, *arguments: Any) -> Any:
        """The function's result; WorkerError for what it raised, TimeoutError if that takes too
        long."""
        request = json.dumps([self.deadline_s, arguments]).encode()
        with self._lock:
            try:
                return self._child.ask(request)
            except WorkerDied as error:
                if error.status != TOO_MUCH_CPU:  # killed from outside
                    return self._child.ask(request)
        raise TimeoutError(f"no answer within {self.deadline_s:g} s of CPU time")


class _Child:
    """The process, while there is one."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def ask(self, request: bytes) -> Any:
        if self._running is None:
            self._running = start_child(self._command, {})
            self._running[1].settimeout(WALL_S)
            self._receive(self._running[1])
        channel = self._running[1]
        with suppress(ConnectionError):  # the reading says how the process ended
            channel.sendall(len(request).to_bytes(HEADER_SIZE) + request)
        return self._receive(channel)

    def _receive(self, channel: socket.socket) -> Any:
        try:
            size = int.from_bytes(_read(channel, HEADER_SIZE))
            reply = orjson.loads(_read(channel, size))
        except TimeoutError:
            self.end()
            raise TimeoutError(f"no answer within {WALL_S:g} s") from None
        except (EOFError, ConnectionError):
            raise WorkerDied(self.end()) from None
        return result_of(reply)

    def end(self) -> int | None:
        """End the process; its exit status."""
        if self._running is None:
            return None
        process, channel = self._running
        self._running = None
        channel.close()
        with suppress(subprocess.TimeoutExpired):  # one that waits ends with its channel
            return process.wait(0.5)
        process.kill()
        return process.wait()


def _read(channel: socket.socket, size: int) -> bytes:
    """So many bytes; EOFError if the process has ended."""
    found = bytearray()
    while len(found) < size:
        if not (part := channel.recv(size - len(found))):
            raise EOFError
        found += part
    return bytes(found)
