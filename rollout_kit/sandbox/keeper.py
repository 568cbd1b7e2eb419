"""A zygote as seen from here: a process that is asked for one run after another."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson

from ..launch.process_tree import kill_family
from .limits import SandboxError, SandboxLimits, SandboxRun
from .memory import held_mb
from .pipes import Capture, nowhere, sealed

ROOT = Path(__file__).resolve().parents[2]

START = """\
import sys
sys.path.append(sys.argv[1])
from rollout_kit.sandbox.zygote import main
main(*sys.argv[2:])
"""

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",  # address space is what is limited
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",  # the same code, the same output
}
"""All that a run finds in its environment."""

GRACE_S = 5.0
"""Beyond a run's time limit; then its zygote does not answer, and is killed."""

LARGE = 1 << 16
"""Bytes of an answer from which it is read in a thread."""

WATCH_S = 0.1
"""How often the memory of a run's processes is added up."""


class Zygote:
    """One process, spoken to over a socket that keeps messages apart."""

    def __init__(self, kind: str, folders: Sequence[str]) -> None:
        self._is_bare = kind == "bare"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        python = getattr(sys, "_base_executable", "") or sys.executable
        paths = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                # -S: no packages of this process; -P: nothing of the working folder
                [python, "-SsPB", "-c", START, str(ROOT), kind, str(os.getpid()), *folders],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**ENVIRONMENT, **paths},
                cwd="/",
                start_new_session=True,
            )

    async def run(
        self, program: bytes, stdin: bytes, with_stdout: bool, limits: SandboxLimits
    ) -> SandboxRun:
        loop = asyncio.get_running_loop()
        try:
            with (
                sealed(program) as source,
                sealed(stdin) as given,
                nowhere() as unread,
                Capture(loop, limits.output_bytes, self._stop) as stdout,
                Capture(loop, limits.output_bytes, self._stop) as answer,
                _Watch(loop, self._process.pid, limits.memory_mb, self._stop) as memory,
            ):
                sink = stdout.sink if with_stdout else unread
                request = orjson.dumps(limits.to_json())
                socket.send_fds(self._control, [request], [source, given, sink, answer.sink])
                stdout.begin()
                answer.begin()
                async with asyncio.timeout(limits.time_s + GRACE_S):
                    report = await self.heard()
                    await stdout.end
                    await answer.end
        except TimeoutError:
            raise SandboxError("a run was not ended by its limit") from None
        except OSError as error:
            raise SandboxError(f"a zygote could not be asked: {error}") from None
        if len(answer.data) < LARGE:
            return _told(report, stdout, answer, memory)
        return await asyncio.to_thread(_told, report, stdout, answer, memory)

    def _stop(self) -> None:
        with suppress(OSError):
            self._control.send(b"stop")

    async def heard(self) -> dict[str, Any]:
        """Its next message."""
        loop = asyncio.get_running_loop()
        try:
            raw = await loop.sock_recv(self._control, 1 << 16)
        except OSError as error:
            raise SandboxError(f"a zygote is gone: {error}") from None
        if not raw:
            raise SandboxError("a zygote is gone")
        return orjson.loads(raw)

    async def kill(self) -> None:
        """End it with all that it has started."""
        if self._process.poll() is None:
            if self._is_bare:  # nothing else ties what it has started to it
                await asyncio.to_thread(kill_family, self._process.pid)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        self._control.close()


def _told(report: dict[str, Any], stdout: Capture, answer: Capture, memory: "_Watch") -> SandboxRun:
    said: Any = None
    with suppress(ValueError, RecursionError):  # Python's own: orjson knows no infinity, no 2**100
        said = json.loads(bytes(answer.data))
    told = said if isinstance(said, dict) else {}
    if report["fault"]:
        raise SandboxError(f"a run could not begin: {report['fault']}")
    error = str(told.get("error", ""))
    if stdout.is_full or answer.is_full:
        end = "output"
    elif report["timed_out"]:
        end = "time"
    elif report["stopped"] and memory.is_too_much:
        end = "memory"
    elif error:
        end = "raised"
    else:
        end = "finished" if report["status"] == 0 else "died"
    return SandboxRun(
        end,
        bytes(stdout.data),
        answered="value" in told,
        value=told.get("value"),
        error=error,
        duration_s=report["duration_s"],
        cpu_s=report["cpu_s"],
    )


class _Watch:
    """Looks at what the processes of a run hold together; `stop` is called once that is too
    much."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, root: int, most_mb: int, stop: Callable[[], None]
    ) -> None:
        self._loop, self._root, self._most_mb, self._stop = loop, root, most_mb, stop
        self.is_too_much = False

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(WATCH_S, self._look)
        return self

    def _look(self) -> None:
        if held_mb(self._root) <= self._most_mb:
            self._timer = self._loop.call_later(WATCH_S, self._look)
            return
        self.is_too_much = True
        self._stop()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
