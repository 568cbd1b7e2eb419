"""The parent's side of a zygote: start the process, send it runs, read their results."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ..process_tree import kill_family
from .limits import End, SandboxError, SandboxLimits, SandboxRun, read_integer
from .pipes import Capture, sealed

ROOT = Path(__file__).resolve().parents[3]

START = """\
import sys
sys.path.append(sys.argv[1])
from rollout_kit.serving.sandbox.zygote import main
main(*sys.argv[2:])
"""

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",  # arenas use up the limited address space
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",  # makes output reproducible
}
"""The complete environment of a run."""

GRACE_S = 5.0
"""A zygote that has not replied this long after a run's time limit is killed."""

START_S = 30.0
"""Time limit for starting a zygote."""

LARGE = 1 << 16
"""Answers of at least this many bytes are parsed in a thread."""


def start_program(
    start: str, words: Sequence[str], control: socket.socket, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start Python with the code `start`, which gets ROOT and `words`, and `control` as standard
    input. It sees no environment but this."""
    python = getattr(sys, "_base_executable", "") or sys.executable
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return subprocess.Popen(
        # -S: no site-packages; -P: the working folder is not importable
        [python, "-SsPB", "-c", start, str(ROOT), *words],
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        env={**environment, **libraries},
        cwd="/",
        start_new_session=True,
    )


class Zygote:
    """A process that executes one run at a time; the socket preserves message boundaries.

    It `is_spent` after a run that has left something behind.
    """

    def __init__(self, kind: str, paths: Sequence[str], task: Path | None = None) -> None:
        self._is_bare = kind == "bare"
        self._is_ready = self.is_spent = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        words = [kind, str(os.getpid()), str(task or ""), *paths]
        with theirs:
            self._process = start_program(START, words, theirs, ENVIRONMENT)

    async def ready(self) -> None:
        """Wait, once, until it has started; SandboxError if it cannot."""
        if self._is_ready:
            return
        try:
            async with asyncio.timeout(START_S):
                reply = await self.receive()
        except TimeoutError:
            raise SandboxError(f"a zygote did not start within {START_S:g} s") from None
        if problem := reply.get("error"):
            raise SandboxError(problem)
        self._is_ready = True

    async def run(
        self, program: bytes, stdin: bytes, with_stdout: bool, limits: SandboxLimits
    ) -> SandboxRun:
        loop = asyncio.get_running_loop()
        try:
            with (
                sealed(program) as source,
                sealed(stdin) as given,
                Capture(loop, limits.output_bytes, self._stop) as stdout,
                Capture(loop, limits.output_bytes, self._stop) as answer,
            ):
                sinks = [stdout.sink, answer.sink] if with_stdout else [answer.sink]
                request = orjson.dumps(limits.to_json())
                socket.send_fds(self._control, [request], [source, given, *sinks])
                stdout.begin()
                answer.begin()
                async with asyncio.timeout(limits.time_s + GRACE_S):
                    report = await self.receive()
                # all processes of the run have ended, so what they wrote is there; the ends of
                # the pipes are not waited for, because sockets may keep them open for long
                stdout.read_rest()
                answer.read_rest()
        except TimeoutError:
            raise SandboxError("a run did not end at its time limit") from None
        except OSError as error:
            raise SandboxError(f"cannot send a run to a zygote: {error}") from None
        self.is_spent = report["left"]
        if len(answer.data) < LARGE:
            return _read_result(report, stdout, answer, limits)
        return await asyncio.to_thread(_read_result, report, stdout, answer, limits)

    def _stop(self) -> None:
        with suppress(OSError):
            self._control.send(b"stop")

    async def receive(self) -> dict[str, Any]:
        """Return the next message of the zygote."""
        loop = asyncio.get_running_loop()
        try:
            raw = await loop.sock_recv(self._control, 1 << 16)
        except OSError as error:
            raise SandboxError(f"a zygote died: {error}") from None
        if not raw:
            raise SandboxError("a zygote died")
        return orjson.loads(raw)

    async def kill(self) -> None:
        """Kill the zygote and its descendants; delete the files of an unfinished run."""
        if self._process.poll() is None:
            if self._is_bare:  # outside of a namespace, descendants are found through /proc
                await asyncio.to_thread(kill_family, self._process.pid)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
        if self._is_bare:
            await asyncio.to_thread(_delete_files, self._process.pid)
        self._control.close()


def _delete_files(zygote: int) -> None:
    """Delete the folders that a killed bare zygote has made for its runs; see `zygote.Bare`."""
    for folder in Path("/tmp").glob(f"sandbox-{zygote}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _read_result(
    report: dict[str, Any], stdout: Capture, answer: Capture, limits: SandboxLimits
) -> SandboxRun:
    decoded: Any = None
    with suppress(ValueError, RecursionError):  # json, because orjson rejects infinity and 2**100
        decoded = json.loads(bytes(answer.data), parse_int=read_integer)
    reply = decoded if isinstance(decoded, dict) else {}
    if report["fault"]:
        raise SandboxError(f"a run could not start: {report['fault']}")
    error = _read_error(reply)
    if stdout.is_full or answer.is_full:
        end: End = "output"
    else:
        end = _find_end(report, limits, has_raised=bool(error))
    return SandboxRun(
        end,
        bytes(stdout.data),
        answered="value" in reply,
        value=reply.get("value"),
        number=number if isinstance(number := reply.get("number"), float) else None,
        error=error,
        duration_s=report["duration_s"],
        cpu_s=report["cpu_s"],
    )


def _read_error(reply: dict[str, Any]) -> str:
    error = reply.get("error", "")  # not its `str`, which fails for a value of too many levels
    return error if isinstance(error, str) else "an error that is no text"


def _find_end(report: dict[str, Any], limits: SandboxLimits, *, has_raised: bool) -> End:
    if report["stopped"] in ("time", "memory"):
        return report["stopped"]
    if report["left"]:
        return "left"
    if has_raised:
        return "raised"
    if report["status"] == 0:
        return "finished"
    return "cpu" if limits.cpu_s is not None and report["cpu_s"] >= limits.cpu_s else "died"
