"""Processes that call one function: each call ends by its deadline, even if the function hangs.

The function is named by the path of its Python file, so the file need not be importable. Arguments
and results are JSON. A worker that passes its deadline is killed.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson

from ..errors import ConfigError, RolloutKitError
from .warm import WarmPool

HEADER_SIZE = 4
"""Bytes of the big-endian length before each message; `child.py` knows it too."""

LACKS = ("ModuleNotFoundError", "ImportError")
"""What a worker's file raises where a package is missing."""

CHILD = Path(__file__).with_name("child.py")


class WorkerError(RolloutKitError):
    """The function raised: `kind` is the exception's class name, `message` its text."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


class WorkerDied(WorkerError):
    """The process ended without an answer: killed from outside, or crashed in C code."""


class WorkerPool:
    """At most `num_workers` processes of `file`'s `function`, each call bounded by `deadline_s`.

    `deadline_s` counts from when a worker takes the call, not while the call waits for one.
    `max_memory_mb` bounds a worker's address space, so that runaway work raises MemoryError there
    instead of bringing the machine down.
    """

    def __init__(
        self,
        file: Path,
        function: str,
        *,
        num_workers: int = 1,
        deadline_s: float = 10.0,
        max_memory_mb: int | None = None,
    ) -> None:
        self.deadline_s = deadline_s
        self._num_workers = num_workers
        command = [str(file), function, str(max_memory_mb or 0)]
        self._workers = WarmPool(num_workers, lambda: _Worker(command))

    async def start(self, needs: str = "") -> None:
        """Start every worker now and load its file; WorkerError when the file cannot be loaded.

        `needs` says what to install: a package that is missing is a ConfigError then.
        """
        try:
            await self._workers.start(self._num_workers)
        except WorkerError as error:
            if needs and error.kind in LACKS:
                raise ConfigError(f"{needs} ({error.message})") from error
            raise

    async def call(self, *arguments: Any) -> Any:
        """The function's result; TimeoutError at the deadline, WorkerError for what it raised."""
        request = orjson.dumps(arguments)
        try:
            async with self._workers.lease() as worker, asyncio.timeout(self.deadline_s):
                reply = await worker.ask(request)
        except TimeoutError:
            raise TimeoutError(
                f"no answer within {self.deadline_s:g} s; the worker was killed"
            ) from None
        return _result(reply)

    async def close(self) -> None:
        """Kill every worker; a call that is still running ends with WorkerDied."""
        await self._workers.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _result(reply: dict[str, Any]) -> Any:
    if (error := reply.get("error")) is not None:
        raise WorkerError(error["type"], error["message"])
    return reply["result"]


class _Worker:
    """One process, spoken to over a socket that is its standard input.

    Started from the thread of the event loop: the death signal is tied to the thread that spawned,
    and a thread of an executor may end before the pool does.
    """

    def __init__(self, command: list[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: without it the child would import rollout_kit/types.py as the standard `types`
                [sys.executable, "-P", str(CHILD), *command, str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # a session of its own: Ctrl-C goes to the foreground process group only
                start_new_session=True,
            )
        self._socket = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ready(self) -> None:
        """Wait, once, until the file is loaded."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._socket)
            _result(await self._receive(self._streams[0]))

    async def ask(self, request: bytes) -> dict[str, Any]:
        assert self._streams
        reader, writer = self._streams
        with suppress(ConnectionError):  # death shows in the read, which says what happened
            writer.write(len(request).to_bytes(HEADER_SIZE) + request)
            await writer.drain()
        return await self._receive(reader)

    async def _receive(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            size = int.from_bytes(await reader.readexactly(HEADER_SIZE))
            return orjson.loads(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.kill()
            raise WorkerDied("WorkerDied", f"exit status {self._process.returncode}") from None

    async def kill(self) -> None:
        """End the process and what it has started; returns when it is gone."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                # its process group is its own only once setsid has run in the child, which
                # Popen has waited for
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        if self._streams is None:
            self._socket.close()
            return
        writer = self._streams[1]
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
