"""Processes that call one function: each call ends by its deadline, even if the function hangs.

The function is named by the path of its Python file, so the file need not be importable. Arguments
and results are JSON. A worker that passes its deadline is killed.

Workers match and parse texts of models and rows, so they hold no key: their environment is clean,
and they inherit no descriptor but their channel and the standard streams.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson

from ...errors import ConfigError, RolloutKitError, VerifyError
from .environment import clean_environment
from .warm import WarmPool

HEADER_SIZE = 4
"""Bytes of the big-endian length before each message; the same in `child.py`."""

LACKS = ("ModuleNotFoundError", "ImportError")
"""Exceptions of a worker's file if a package is missing."""

EXHAUSTED = ("MemoryError", "RecursionError")
"""Exceptions of a function whose arguments need more memory or stack than a worker has."""

CRASHES = frozenset({-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL})
"""Exit statuses of a worker that crashed itself; others, such as SIGKILL, come from outside. What
comes from outside is an error, because it says nothing about the answer."""

TOO_MUCH_CPU = -signal.SIGPROF
"""Exit status of a worker whose call used up its CPU time."""

PATIENCE_S = 0.1
"""How long a call waits for a busy worker before another one starts: importing what a verifier
needs takes longer than most verdicts."""

CHILD = Path(__file__).with_name("child.py")


class WorkerError(RolloutKitError):
    """The function raised: `kind` is the exception's class name, `message` its text."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


class WorkerDied(WorkerError):
    """The process ended without an answer: killed from outside, or crashed in C code. `status` is
    its exit status."""

    def __init__(self, status: int | None) -> None:
        super().__init__("WorkerDied", f"exit status {status}")
        self.status = status


class WorkerPool:
    """At most `num_workers` processes of `file`'s `function`, each call bounded by `deadline_s`.
    The first starts with the pool, each other one when a call has to wait.

    `deadline_s` is CPU time of the worker, so a busy machine changes no result; None means no
    limit. Processes that the function starts do not count. `wall_deadline_s` is time on the clock.
    Neither includes the wait for a free worker. `max_memory_mb` bounds a worker's address space, so
    that excessive use raises MemoryError in the worker.

    Workers have the variables of `clean_environment` and those in `environment`. Unless
    `is_confined` is false, no program that they start gains privileges.

    Example:

        Path("work.py").write_text("def double(number):\\n    return 2 * number\\n")
        async with rk.WorkerPool(Path("work.py"), "double", deadline_s=2.0) as pool:
            print(await pool.call(21))
    """

    def __init__(
        self,
        file: Path,
        function: str,
        *,
        num_workers: int = 1,
        deadline_s: float | None = 5.0,
        wall_deadline_s: float = 60.0,
        max_memory_mb: int | None = None,
        environment: Mapping[str, str] | None = None,
        is_confined: bool = True,
    ) -> None:
        self.deadline_s = deadline_s
        self.wall_deadline_s = wall_deadline_s
        command = [str(file), function, str(max_memory_mb or 0), str(int(is_confined))]
        own = dict(environment or {})
        self._workers = WarmPool(num_workers, lambda: _Worker(command, own), PATIENCE_S)

    async def start(self, needs: str = "") -> None:
        """Start a worker and load the file; WorkerError if it cannot be loaded.

        With `needs`, which says what to install, a missing package is a ConfigError.
        """
        try:
            await self._workers.start(1)
        except WorkerError as error:
            if needs and error.kind in LACKS:
                raise ConfigError(f"{needs} ({error.message})") from error
            raise

    async def call(self, *arguments: Any) -> Any:
        """The function's result; WorkerError for what it raised. TimeoutError if the arguments are
        too much for it: it used up its CPU time, ran out of memory, or crashed twice.

        VerifyError if there is no answer within `wall_deadline_s`. That says nothing about the
        arguments: the machine may be busy. It leaves a rollout unverified.
        """
        request = json.dumps([self.deadline_s or 0, arguments]).encode()
        try:
            try:
                return await self._ask(request)
            except WorkerDied as error:
                if self._workers.is_closed or error.status == TOO_MUCH_CPU:
                    raise
                return await self._ask(request)
        except WorkerError as error:
            status = getattr(error, "status", None)
            if status == TOO_MUCH_CPU:
                reason = f"no answer within {self.deadline_s:g} s of CPU time"
                raise TimeoutError(f"{reason}; the worker was killed") from None
            if error.kind not in EXHAUSTED and status not in CRASHES:
                raise
            raise TimeoutError(f"the worker could not answer: {error}") from None

    async def _ask(self, request: bytes) -> Any:
        async with self._workers.lease() as worker:
            try:
                async with asyncio.timeout(self.wall_deadline_s):
                    reply = await worker.ask(request)
            except TimeoutError:
                raise VerifyError(
                    f"no answer within {self.wall_deadline_s:g} s, and the worker was killed: it"
                    " waits, or this machine is too busy for its CPU time to run out. This is no"
                    " verdict: ng_reverify asks again",
                    retryable=False,
                ) from None
        return result_of(reply)

    async def close(self) -> None:
        """Kill every worker; a call that is still running ends with WorkerDied."""
        await self._workers.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def start_child(
    command: list[str], own: Mapping[str, str]
) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """A worker process, and the socket whose other end is its standard input. `command` is file,
    function, megabytes, and whether it is confined."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            # without -P the child would import rollout_kit/types.py as the standard `types`
            [sys.executable, "-P", str(CHILD), *command, str(os.getpid())],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**clean_environment(), **own},
            # in a session of its own, Ctrl-C does not reach the child
            start_new_session=True,
        )
    return process, ours


def result_of(reply: dict[str, Any]) -> Any:
    """What the function returned; WorkerError for what it raised."""
    if (error := reply.get("error")) is not None:
        raise WorkerError(error["type"], error["message"])
    return reply["result"]


class _Worker:
    """One process; the other end of its socket is its standard input.

    It is started from the thread of the event loop, because the death signal is bound to the thread
    that spawned it, and a thread of an executor may end earlier.
    """

    is_spent = False

    def __init__(self, command: list[str], own: Mapping[str, str]) -> None:
        self._process, self._socket = start_child(command, own)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ready(self) -> None:
        """Wait, once, until the file is loaded."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._socket)
            result_of(await self._receive(self._streams[0]))

    async def ask(self, request: bytes) -> dict[str, Any]:
        assert self._streams
        reader, writer = self._streams
        with suppress(ConnectionError):  # if the worker died, the read raises the reason
            writer.write(len(request).to_bytes(HEADER_SIZE) + request)
            await writer.drain()
        return await self._receive(reader)

    async def _receive(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            size = int.from_bytes(await reader.readexactly(HEADER_SIZE))
            return orjson.loads(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.kill()
            raise WorkerDied(self._process.returncode) from None

    async def kill(self) -> None:
        """End the process and what it has started; return when it is gone."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                # the child has a process group of its own, because Popen waits for its setsid
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        if self._streams is None:
            self._socket.close()
            return
        writer = self._streams[1]
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
