"""One `vllm serve` and those that follow it on the same port: started, watched, started again.

Nothing of it outlives us: it carries the mark of the server process that it belongs to, and where
there is none, a reaper of its own looks after it.
"""

import asyncio
import os
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import random

from rollout_kit.errors import ConfigError, PeerError
from rollout_kit.launch.process_tree import MARK, kill_family
from rollout_kit.launch.processes import Reaper
from rollout_kit.transport.http import HttpClient
from rollout_kit.transport.retry import RetryPolicy, delay_s

from . import words

POLL_S = 0.2
"""Between questions to a vLLM that loads: short against its start."""

WATCH_S = 0.05
"""Between looks at whether it lives."""

STOP_S = 2.0
"""For vLLM to end by itself: less than the server process that it belongs to is given."""

STEADY_S = 30.0
"""A vLLM that was ready for this long was at work: its death does not count against it."""

SHORT_LIFE = 1 / 6
"""Of a start in vain: it may be well, and meet a request that ends it each time, until the rollout
that sends it is given up."""

PAUSES = RetryPolicy(base_s=1.0, cap_s=60.0)
"""Before another start: longer with each that was in vain."""

KEPT_LINES = 400
"""Last lines that the reason of a failure is looked for in: each process has its traceback."""


@dataclass(slots=True, eq=False)
class Engine:
    """One replica. `say` tells people a line, `note` keeps one of vLLM's own."""

    label: str
    command: list[str]
    env: Mapping[str, str]
    http: HttpClient
    say: Callable[[str], None]
    note: Callable[[str], None]
    ready_timeout_s: float = 1800.0
    max_restarts: int = 5
    restarts: int = 0
    pid: int | None = None
    given_up: str = ""
    """Why it is not started any more."""
    mark: str = field(default_factory=lambda: os.environ.get(MARK) or secrets.token_hex(8))
    _port: socket.socket = field(default_factory=lambda: _held_port())
    _process: asyncio.subprocess.Process | None = None
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    _reader: asyncio.Task[None] | None = None
    _reaper: Reaper | None = None
    _ready_at: float | None = None
    _strikes: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port.getsockname()[1]}"

    async def start(self) -> None:
        """Start vLLM and wait until it answers; ConfigError, with its own words, where it cannot
        load."""
        if MARK not in os.environ:  # in nobody's server process: nobody else would end it
            self._reaper = Reaper()
            await self._reaper.start()
        await self._start_once()

    async def keep(self, died: Callable[[], None]) -> None:
        """Start it again whenever it dies, until that is given up; `died` is called at once."""
        while not self.given_up:
            assert self._process
            await _ended(self._process)
            died()
            self._count()
            why = await self._epitaph()
            if self._strikes > self.max_restarts:
                self.given_up = f"{why}\ngiven up: {self.max_restarts} starts were in vain"
                self.say(self.given_up)
                return
            tries = int(self._strikes)
            pause_s = delay_s(PAUSES, tries, None, random) if tries else 0.0
            self.say(why)
            await asyncio.sleep(pause_s)
            self.restarts += 1
            with suppress(ConfigError):  # the next round of the loop says it
                await self._start_once()

    async def stop(self) -> None:
        if self._process and self._process.returncode is None:
            self._process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await _ended(self._process)
        await self._bury()
        if self._reaper:
            self._reaper.forgets(self)
            await self._reaper.close()
        self._port.close()

    async def _start_once(self) -> None:
        began = time.monotonic()
        self._ready_at = None
        self._lines.clear()
        self.say(f"starting {self.label}: {' '.join(self.command[:3])} …")
        await self._spawn()
        try:
            async with asyncio.timeout(self.ready_timeout_s):
                await self._until_it_answers()
        except TimeoutError:
            self._lines.append(f"TimeoutError: not ready within {self.ready_timeout_s:g} s")
            self.say(f"{self.label} is not ready in ready_timeout_s={self.ready_timeout_s:g}")
            await self._bury()
            raise ConfigError(await self._epitaph()) from None
        except BaseException:
            await self._bury()
            raise
        self._ready_at = time.monotonic()
        self.say(f"{self.label} is ready after {self._ready_at - began:.0f} s at {self.url}")

    async def _spawn(self) -> None:
        port = str(self._port.getsockname()[1])
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                *("--host", "127.0.0.1", "--port", port),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**self.env, MARK: self.mark},
                start_new_session=True,  # a Ctrl-C is for us: what is in flight is to be drained
                limit=1 << 20,
            )
        except OSError as error:
            message = f"{self.command[0]} cannot be started: {error.strerror}"
            raise ConfigError(message) from None
        self.pid = self._process.pid
        if self._reaper:
            self._reaper.knows(self)
        self._reader = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        told: set[str] = set()
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:
                continue  # longer than any line that is meant for people
            if not raw:
                return
            # a progress bar is one line to the pipe: its last state is enough
            line = raw.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
            self._lines.append(line)
            self.note(line)
            if (phase := words.phase(line)) and phase not in told:
                told.add(phase)
                self.say(f"{self.label} {phase}")

    async def _until_it_answers(self) -> None:
        assert self._process
        while self._process.returncode is None:
            with suppress(PeerError):
                reply = await self.http.get(f"{self.url}/health", timeout_s=5)
                if reply.status == 200:
                    return
            await asyncio.sleep(POLL_S)
        raise ConfigError(await self._epitaph())

    def _count(self) -> None:
        if self._ready_at is None:
            self._strikes += 1
        elif time.monotonic() - self._ready_at < STEADY_S:
            self._strikes += SHORT_LIFE
        else:
            self._strikes = 0

    async def _epitaph(self) -> str:
        """How it ended, why in its own words, and what to do about it."""
        assert self._process
        await self._bury()
        code = self._process.returncode or 0
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else "ended"
        when = "while it was loading" if self._ready_at is None else "while it was at work"
        said = words.reason(self._lines)
        if not said and code >= 0:  # who is killed from outside has said nothing about it
            said = [each for each in self._lines if each.strip()][-words.NUM_SHOWN :]
        advice = words.advice(self._lines)
        return "\n".join(
            [
                f"{self.label} (pid {self.pid}) {ending} {when}" + (f" ({code})" if code else ""),
                *(f"    {line}" for line in said),
                *([advice] if advice else []),
            ]
        )

    async def _bury(self) -> None:
        """End all of it: its main process may be dead and its workers alive."""
        if self._process is None:
            return
        await asyncio.to_thread(kill_family, self._process.pid)
        await _ended(self._process)
        if self._reader:
            await asyncio.wait({self._reader}, timeout=0.5)
            self._reader.cancel()


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Until it has: `process.wait()` waits for its workers too, who may hold its output open."""
    while process.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(WATCH_S)


def _held_port() -> socket.socket:
    """A port that is kept: bound by us and never listened on, so that vLLM can, and that no one
    else is given it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """What vLLM starts with: ours, less the path to this toolkit, which is for our Python alone."""
    here = Path(__file__).resolve()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and not here.is_relative_to(Path(path).resolve())]
    rest = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {
        **rest,
        **({"PYTHONPATH": os.pathsep.join(kept)} if kept else {}),
        "PYTHONUNBUFFERED": "1",
        # longer than our client keeps an idle connection, so that none ends under a request
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "75"),
        **own,
    }
