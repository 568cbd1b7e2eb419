"""Keeps one server process alive: its death is noticed at once, and another takes over its sockets.

Callers that connect meanwhile wait in the sockets' queues. Once restarting is given up the sockets
are closed, so that callers learn it at once.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..errors import ConfigError
from ..transport.http import HttpClient
from ..transport.retry import SERVER_RESTART, delay_s
from .output import Output
from .processes import Child, Reaper, bury, wait_ready

STEADY_S = 0.5
"""A server that was ready for this long was at work: its death is no strike."""

SHORT_LIFE = 1 / 6
"""Of a strike: a server that dies as soon as it is ready may be fine, and meet a request that kills
it each time, until the rollout that sends it is given up."""

State = Literal["starting", "ready", "restarting", "failed"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What every server process of a run is kept by. `tell` shows a line to people."""

    run_id: str
    client: HttpClient
    reaper: Reaper
    max_strikes: int = 5
    ready_timeout_s: float = 600
    tell: Callable[[str], None] = lambda line: None


@dataclass(slots=True)
class Keeper:
    """One server process after another, under one label and on the same sockets."""

    label: str
    sockets: Mapping[str, socket.socket]
    output: Output
    terms: Terms
    spawn: Callable[[], Awaitable[Child]]
    child: Child | None = None
    state: State = "starting"
    restarts: int = 0
    ready_at: float = 0.0
    """`time.monotonic()` when it last became ready."""
    _strikes: float = field(default=0.0)
    _deaths: int = field(default=0)
    """In a row, since it was last at work."""

    @property
    def pid(self) -> int | None:
        """None while there is no process."""
        alive = self.child is not None and self.child.process.returncode is None
        return self.child.pid if self.child and alive else None

    @property
    def uptime_s(self) -> float | None:
        """Since it was last ready; None while it is not."""
        return time.monotonic() - self.ready_at if self.state == "ready" else None

    async def start(self) -> None:
        """Start the process; it is not ready yet."""
        self.output.tail.clear()
        self.child = await self.spawn()
        self.terms.reaper.knows(self.child)

    async def ready(self) -> None:
        """Until it answers; ConfigError when it cannot start."""
        assert self.child is not None
        terms = self.terms
        await wait_ready(self.child, terms.run_id, terms.client, terms.ready_timeout_s)
        self.state, self.ready_at = "ready", time.monotonic()

    async def keep(self) -> str:
        """Restart it whenever it dies; returns, with the reason, once that is given up."""
        while True:
            assert self.child is not None
            await self.child.process.wait()
            self._count_strikes()
            self.state = "restarting"
            await self._buried(self.child)
            if self._strikes >= self.terms.max_strikes:
                return self._given_up(self.child)
            await self._restarted(self.child)

    def _count_strikes(self) -> None:
        if self.state != "ready":
            self._strikes, self._deaths = self._strikes + 1, self._deaths + 1
        elif time.monotonic() - self.ready_at < STEADY_S:
            self._strikes, self._deaths = self._strikes + SHORT_LIFE, self._deaths + 1
        else:
            self._strikes, self._deaths = 0.0, 0

    async def _restarted(self, dead: Child) -> None:
        pause_s = delay_s(SERVER_RESTART, int(self._strikes) + 1) if self._strikes else 0.0
        self._tell(f"server '{dead.label}' (pid {dead.pid}) {dead.ending}: restarting it")
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        self.restarts += 1
        try:
            await self.start()
            await self.ready()
        except OSError as error:
            self._tell(f"server '{self.label}' cannot be started: {error}")
        except ConfigError:
            assert self.child is not None
            await self._buried(self.child)  # dead, or alive and never ready
        else:
            took_s = time.monotonic() - began
            self._tell(f"server '{self.label}' is back (pid {self.pid}, {took_s:.1f} s)")

    def _tell(self, line: str) -> None:
        """To people, and into the server's own log."""
        line = f"{time.strftime('%F %T')} {line}"
        self.output.note(line)
        self.terms.tell(line)

    async def _buried(self, child: Child) -> None:
        await bury(child)
        self.terms.reaper.forgets(child)

    def _given_up(self, child: Child) -> str:
        self.state = "failed"
        for sock in self.sockets.values():
            sock.close()
        again = f" {self._deaths} times in a row" if self._deaths > 1 else ""
        return f"{child.obituary()}\n    given up: it ended{again}, and is not started any more"
