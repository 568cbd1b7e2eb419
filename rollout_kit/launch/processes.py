"""Child processes: their start, their output, their end.

A child leads a session of its own, so a Ctrl-C reaches only its parent. `end` also kills everything
that the child started. The `Reaper` does the same if the parent is killed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..serving.process_tree import kill_family
from ..serving.workers.environment import clean_environment

MAX_LINE_BYTES = 1 << 20
"""Longer lines of output are dropped."""

LAST_OUTPUT_S = 0.5
"""Time for the remaining output of a dead child to come through its pipe."""

WATCH_S = 0.2
"""Pause between checks whether a child has ended while other processes hold its pipe open."""


@dataclass(slots=True)
class Child:
    process: asyncio.subprocess.Process
    reader: asyncio.Task[None]
    mark: str
    """Value of `process_tree.MARK` by which all descendants are found; empty if they share it with
    processes that must live."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    @property
    def ending(self) -> str:
        """How the child ended, in a few words."""
        code = self.process.returncode
        if code is None:
            return "is running"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    async def wait(self) -> None:
        """Return when the child has ended, even if its descendants hold its output open."""
        waiting = asyncio.ensure_future(self.process.wait())
        try:
            while self.is_running:
                await asyncio.wait({waiting}, timeout=WATCH_S)
        finally:
            waiting.cancel()

    async def end(self) -> None:
        """Kill the child, if it lives, and all that it started; read its remaining output."""
        await asyncio.to_thread(kill_family, self.pid, self.mark)
        await self.wait()
        if self.process.stdin:
            self.process.stdin.close()
        await self.read_rest()
        self.reader.cancel()  # a process that still holds the pipe is not a known descendant

    async def read_rest(self) -> None:
        """Read what a dead child has written, as far as it arrives in time."""
        await asyncio.wait({self.reader}, timeout=LAST_OUTPUT_S)


async def spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    take: Callable[[bytes], None],
    mark: str = "",
    line: bytes | None = None,
    pass_fds: Sequence[int] = (),
    cwd: Path | None = None,
) -> Child:
    """Start a child. `take` receives each line of its output.

    Write `line` to its standard input and keep that open until the end; without `line` the input is
    empty. Raises OSError if the command cannot be executed.
    """
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=nothing if line is None else pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.STDOUT,
        pass_fds=tuple(pass_fds),
        cwd=cwd,
        env=env,
        start_new_session=True,
        limit=MAX_LINE_BYTES,
    )
    if process.stdin and line is not None:
        process.stdin.write(line)
    return Child(process, asyncio.create_task(_read_output(process, take)), mark)


async def _read_output(process: asyncio.subprocess.Process, take: Callable[[bytes], None]) -> None:
    assert process.stdout is not None
    while True:
        try:
            raw = await process.stdout.readline()
        except ValueError:
            continue  # a line beyond MAX_LINE_BYTES
        if not raw:
            return
        take(raw)


async def stop(children: Sequence[Child], timeout_s: float) -> None:
    """Ask every child to stop; after `timeout_s` kill what is left of it and its descendants."""
    for child in children:
        if child.is_running:
            child.process.terminate()
    waits = [asyncio.create_task(child.wait()) for child in children]
    if waits:
        await asyncio.wait(waits, timeout=timeout_s)
    await asyncio.gather(*(child.end() for child in children), *waits)


def python_env(inherited: Mapping[str, str] = os.environ, /, **more: str) -> dict[str, str]:
    """Environment in which any interpreter imports this very package and prints at once."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [here, inherited.get("PYTHONPATH", "")]))
    return {**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


class Reaper:
    """A process that kills the children of this one if this one is killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-S",
            "-m",
            "rollout_kit.serving.process_tree",
            stdin=asyncio.subprocess.PIPE,
            env=python_env(clean_environment()),
            start_new_session=True,
        )

    def add(self, child: Child) -> None:
        self._send(f"+{child.pid} {child.mark}\n")

    def remove(self, child: Child) -> None:
        self._send(f"-{child.pid}\n")

    def _send(self, line: str) -> None:
        if self._process and self._process.stdin:
            self._process.stdin.write(line.encode())

    async def close(self) -> None:
        if self._process and self._process.stdin:
            with suppress(ConnectionError):
                await self._process.stdin.drain()
            self._process.stdin.close()
            await self._process.wait()
