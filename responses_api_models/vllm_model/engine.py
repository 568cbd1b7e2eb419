"""One `vllm serve` process at a time, always on the same port.

vLLM carries the mark of the server process that starts it, so it ends with that process. Outside of
a server process, a reaper of its own ends it.
"""

import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from rollout_kit.errors import ConfigError, PeerError
from rollout_kit.launch.processes import Child, Reaper, spawn, stop
from rollout_kit.launch.supervise import Supervisor, Terms
from rollout_kit.serving.process_tree import MARK
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.retry import VLLM_RESTART

from . import words

POLL_S = 0.2
"""Pause between health checks of a vLLM that is loading."""

STOP_S = 2.0
"""Time for vLLM to end by itself; shorter than the time that its server process has."""

STEADY_S = 30.0
"""A vLLM that was ready for this long did work: its end is not a failed start."""

KEPT_LINES = 400
"""Last lines of output in which the reason of a failure is searched: each of vLLM's processes
writes a traceback."""


def terms_of(ready_timeout_s: float, max_restarts: int) -> Terms:
    return Terms(ready_timeout_s, max_restarts, STEADY_S, POLL_S, VLLM_RESTART)


class Engine(Supervisor):
    """One replica. `say` shows a line to people; `note` keeps a line of vLLM's own output."""

    def __init__(
        self,
        title: str,
        command: list[str],
        env: Mapping[str, str],
        http: HttpClient,
        *,
        say: Callable[[str], None],
        note: Callable[[str], None],
        terms: Terms,
    ) -> None:
        # in a server process, that process and its own supervisor end vLLM
        super().__init__(title, terms, None if MARK in os.environ else Reaper())
        self.command = command
        self.env = env
        self._http, self._say, self._note = http, say, note
        self._port = _held_port()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._phases: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port.getsockname()[1]}"

    async def load(self) -> None:
        """Start vLLM and wait until it answers; ConfigError, with vLLM's reason, if it cannot."""
        if self.reaper:
            await self.reaper.start()
        try:
            await self.start()
            await self.wait_ready()
        except BaseException:
            await self.bury()
            raise

    async def spawn(self) -> Child:
        self._lines.clear()
        self._phases.clear()
        self.tell(f"starting {self.title}: {' '.join(self.command[:3])} …")
        mark = secrets.token_hex(8) if self.reaper else ""
        port = str(self._port.getsockname()[1])
        try:
            return await spawn(
                [*self.command, "--host", "127.0.0.1", "--port", port],
                {**self.env, MARK: mark or os.environ[MARK]},
                take=self._take,
                mark=mark,
            )
        except OSError as error:
            message = f"{self.command[0]} cannot be started: {error.strerror}"
            raise ConfigError(message) from None

    def _take(self, raw: bytes) -> None:
        # a progress bar is one line to the pipe: its last state is enough
        line = raw.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
        self._lines.append(line)
        self._note(line)
        if (phase := words.phase(line)) and phase not in self._phases:
            self._phases.add(phase)
            self.tell(f"{self.title} {phase}")

    def tell(self, line: str) -> None:
        self._say(line)

    async def wait_ready(self) -> None:
        began = time.monotonic()
        await super().wait_ready()
        self.tell(f"{self.title} is ready after {time.monotonic() - began:.0f} s at {self.url}")

    async def is_ready(self) -> bool:
        try:
            return (await self._http.get(f"{self.url}/health", timeout_s=5)).status == 200
        except PeerError:
            return False

    def tell_end(self) -> None:
        self.tell(self.obituary())

    def last_words(self) -> list[str]:
        """vLLM's reason, and advice where the cause is known."""
        said = words.reason(self._lines)
        if not said and self.child and (self.child.process.returncode or 0) >= 0:
            said = [each for each in self._lines if each.strip()][-words.NUM_SHOWN :]
        advice = words.advice(self._lines)
        return [*said, *([advice] if advice else [])]

    async def stop(self) -> None:
        if self.child:
            await stop([self.child], STOP_S)
            self.forget()
        if self.reaper:
            await self.reaper.close()
        self._port.close()


def _held_port() -> socket.socket:
    """A socket that reserves a port. It never listens, so that vLLM can; no other program gets the
    port while it is bound."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """vLLM's environment: ours without the path to this toolkit, which is for our Python only."""
    here = Path(__file__).resolve()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and not here.is_relative_to(Path(path).resolve())]
    rest = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {
        **rest,
        **({"PYTHONPATH": os.pathsep.join(kept)} if kept else {}),
        "PYTHONUNBUFFERED": "1",
        # longer than our client keeps idle connections, so that vLLM closes none in use
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "75"),
        **own,
    }
