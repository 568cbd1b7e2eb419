"""Server processes: their sockets, their start, their end.

The parent binds every socket and keeps it, so no other program can take a port, and callers wait in
line while a server is started again. A child ends with its parent: by the kernel's death signal, by
end-of-file on its standard input, and, where it is stuck, by the reaper.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from ..errors import ConfigError, PeerError
from ..transport.http import HttpClient
from ..types import JsonObject
from .output import Output
from .process_tree import MARK, kill_family
from .sockets import url_of

POLL_S = 0.03
"""Pause between questions to a starting server: short against its start, cheap against its CPU."""

STOP_S = 5.0
"""Time between asking a child to stop and killing it with everything that it started."""

LAST_WORDS_S = 0.5
"""Time for what a dead child has written to come through its pipe."""

SHOWN_LINES = 12
"""Last lines of a child's output that its obituary quotes."""


@dataclass(slots=True)
class Child:
    """One server process. `label` is what people see; `urls` maps its instances to their
    addresses."""

    label: str
    urls: Mapping[str, str]
    process: asyncio.subprocess.Process
    output: Output
    reader: asyncio.Task[None]
    mark: str
    """Finds what it has started, wherever that went; see `process_tree.MARK`."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ending(self) -> str:
        """How it ended, in a word."""
        code = self.process.returncode
        if code is None:
            return "is running"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    def obituary(self) -> str:
        """How it ended, the last that it said, and where the rest of that is."""
        said = "".join(f"\n    {line}" for line in list(self.output.tail)[-SHOWN_LINES:])
        log = f"\n    (its log: {self.output.path})" if self.output.path else ""
        return f"server '{self.label}' (pid {self.pid}) {self.ending}{said}{log}"


class Marked(Protocol):
    """What the reaper looks after."""

    @property
    def pid(self) -> int | None: ...

    mark: str


class Reaper:
    """The process that ends our children where we are killed and they cannot end by themselves."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-S",
            "-m",
            "rollout_kit.launch.reaper",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _python_path()},
            start_new_session=True,
        )

    def knows(self, child: "Marked") -> None:
        self._tell(f"+{child.pid} {child.mark}\n")

    def forgets(self, child: "Marked") -> None:
        self._tell(f"-{child.pid}\n")

    def _tell(self, line: str) -> None:
        if self._process and self._process.stdin:
            self._process.stdin.write(line.encode())

    async def close(self) -> None:
        if self._process and self._process.stdin:
            with suppress(ConnectionError):
                await self._process.stdin.drain()
            self._process.stdin.close()
            await self._process.wait()


async def spawn(
    label: str,
    plan: JsonObject,
    sockets: Mapping[str, socket.socket],
    output: Output,
    *,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Child:
    """Start one process that serves the plan's instances on `sockets`; it is not ready yet.

    The plan, secrets included, goes through a pipe: never an argument, never the environment.
    """
    descriptors = {name: sock.fileno() for name, sock in sockets.items()}
    mark = secrets.token_hex(8)
    process = await asyncio.create_subprocess_exec(
        python or sys.executable,
        "-m",
        "rollout_kit.launch.serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        pass_fds=tuple(descriptors.values()),
        env={
            **os.environ,
            "PYTHONPATH": _python_path(),
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
            MARK: mark,
        },
        start_new_session=True,
        limit=1 << 20,
    )
    urls = {name: url_of(sock) for name, sock in sockets.items()}
    assert process.stdin is not None
    process.stdin.write(orjson.dumps({**plan, "sockets": descriptors}) + b"\n")
    reader = asyncio.create_task(_read_output(process, output))
    return Child(label, urls, process, output, reader, mark)


def _python_path() -> str:
    """So that a child finds this very package, also when it runs another environment's
    interpreter."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))


async def _read_output(process: asyncio.subprocess.Process, output: Output) -> None:
    assert process.stdout is not None
    while True:
        try:
            raw = await process.stdout.readline()
        except ValueError:
            continue  # a line beyond the buffer's limit: dropped, the rest is still of use
        if not raw:
            return
        output.take(raw)


async def wait_ready(child: Child, run_id: str, client: HttpClient, timeout_s: float) -> None:
    """Until every instance of the child answers with this run's id; ConfigError when it cannot
    start."""
    answering = asyncio.create_task(_all_answer(child, run_id, client))
    ending = asyncio.create_task(child.process.wait())
    try:
        done, _ = await asyncio.wait(
            {answering, ending}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        answering.cancel()
        ending.cancel()
        await asyncio.gather(answering, ending, return_exceptions=True)
    if ending in done:
        await asyncio.wait({child.reader}, timeout=LAST_WORDS_S)
        raise ConfigError(child.obituary())
    if not done:
        raise ConfigError(
            f"server '{child.label}' was not ready within {timeout_s:g} s (raise it with"
            f" +ready_timeout_s=…): {child.obituary()}"
        )


async def _all_answer(child: Child, run_id: str, client: HttpClient) -> None:
    for url in child.urls.values():
        while not await _answers(url, run_id, client):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


async def _answers(url: str, run_id: str, client: HttpClient) -> bool:
    try:
        reply = await client.get(f"{url}/health", timeout_s=5)
        return reply.status == 200 and orjson.loads(reply.raw).get("run_id") == run_id
    except (PeerError, orjson.JSONDecodeError):
        return False


async def stop(children: list[Child]) -> None:
    """Ask every child to stop, wait, and kill what is left of it and its descendants."""
    for child in children:
        if child.process.returncode is None:
            child.process.terminate()
    waits = [asyncio.create_task(child.process.wait()) for child in children]
    if waits:
        await asyncio.wait(waits, timeout=STOP_S)
    await asyncio.gather(*(bury(child) for child in children), *waits)


async def bury(child: Child) -> None:
    """Kill the child, if it lives, and all that it started; its last words are kept."""
    await asyncio.to_thread(kill_family, child.pid, child.mark)
    await child.process.wait()
    if child.process.stdin:
        child.process.stdin.close()
    await asyncio.wait({child.reader}, timeout=LAST_WORDS_S)
    child.reader.cancel()  # whoever still holds the pipe is no descendant that can be found
