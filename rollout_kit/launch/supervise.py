"""Keeps one process alive: a server of ours, or vLLM.

The supervisor notices the end of the process at once, kills what it left behind, and starts it
again after a pause. It gives up after too many failed starts in a row. It does not know what the
process is: a subclass starts it, checks whether it is ready, and tells people about it. Readiness,
restarts and giving up are hard to get right, so they exist once.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError
from ..serving.transport.loop import cancel_all
from ..serving.transport.retry import SERVER_RESTART, RetryPolicy, delay_s
from .processes import Child, Reaper

SHORT_LIFE = 1 / 6
"""Part of a failed start that a short life counts as. The process may be sound and receive a
request that kills it, as soon as it accepts any, until the rollout that sends it is given up."""

State = Literal["starting", "ready", "restarting", "failed"]


@dataclass(frozen=True, slots=True)
class Terms:
    """How long to wait for a process, and when to stop restarting it."""

    ready_timeout_s: float = 600
    max_restarts: int = 5
    """Failed starts in a row after which the process is given up."""
    steady_s: float = 0.5
    """A process that was ready for this long did work: its end is not a failed start."""
    poll_s: float = 0.03
    """Pause between checks whether a starting process is ready."""
    pauses: RetryPolicy = SERVER_RESTART


class Supervisor:
    """One process after another, under one `title`."""

    place = ""
    """Where it runs, if not on this machine."""

    def __init__(self, title: str, terms: Terms, reaper: Reaper | None = None) -> None:
        self.title = title
        self.terms = terms
        self.reaper = reaper
        self.child: Child | None = None
        self.state: State = "starting"
        self.restarts = 0
        self.given_up = ""
        """Why the process is not started any more; empty before."""
        self._ready_at = 0.0
        self._failed_starts = 0.0
        self._num_short_lives = 0

    async def spawn(self) -> Child:
        """Start the process; raise OSError or ConfigError if that is impossible."""
        raise NotImplementedError

    async def is_ready(self) -> bool:
        raise NotImplementedError

    def tell(self, line: str) -> None:
        """Show a line to people."""
        raise NotImplementedError

    def last_words(self) -> list[str]:
        """Lines of the process's output that explain its end."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what callers of the process wait on; called when it is given up."""

    @property
    def has_begun(self) -> bool:
        """Whether the process, which was not ready yet, accepted requests, if it tells."""
        return False

    @property
    def pid(self) -> int | None:
        """None while there is no process."""
        return self.child.pid if self.child and self.child.is_running else None

    @property
    def uptime_s(self) -> float | None:
        """Time since the process became ready; None while it is not ready."""
        return time.monotonic() - self._ready_at if self.state == "ready" else None

    async def start(self) -> None:
        """Start the process; it is not ready yet."""
        self.child = await self.spawn()
        if self.reaper:
            self.reaper.add(self.child)

    async def wait_ready(self) -> None:
        """Return when the process is ready; ConfigError if it ends before or takes too long."""
        assert self.child is not None
        timeout_s = self.terms.ready_timeout_s
        ready = asyncio.create_task(self._poll())
        ending = asyncio.create_task(self.child.wait())
        try:
            done, _ = await asyncio.wait(
                {ready, ending}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            await cancel_all([ready, ending])
        if ending in done:
            await self.child.read_rest()
            raise ConfigError(self.obituary())
        if not done:
            raise ConfigError(
                f"{self.title} was not ready within {timeout_s:g} s (raise ready_timeout_s):"
                f" {self.obituary()}"
            )
        ready.result()
        self.state, self._ready_at = "ready", time.monotonic()

    async def _poll(self) -> None:
        while not await self.is_ready():  # noqa: ASYNC110
            await asyncio.sleep(self.terms.poll_s)

    async def keep(self, on_death: Callable[[], None] = lambda: None) -> str:
        """Restart the process whenever it ends; return the reason once it is given up.

        `on_death` is called as soon as the process has ended.
        """
        while True:
            assert self.child is not None
            await self.child.wait()
            self._count()
            self.state = "restarting"
            on_death()
            await self.bury()
            if self._failed_starts >= self.terms.max_restarts:
                return self._give_up()
            await self._restart()

    def _count(self) -> None:
        if self.state == "ready" and time.monotonic() - self._ready_at >= self.terms.steady_s:
            self._failed_starts, self._num_short_lives = 0.0, 0
            return
        has_lived = self.state == "ready" or self.has_begun
        self._failed_starts += SHORT_LIFE if has_lived else 1
        self._num_short_lives += 1

    async def _restart(self) -> None:
        failed = self._failed_starts
        pause_s = delay_s(self.terms.pauses, int(failed) + 1) if failed else 0.0
        self.tell_end()
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        self.restarts += 1
        try:
            await self.start()
            await self.wait_ready()
        except OSError as error:
            self.tell(f"{self.title} cannot be started: {error}")
        except ConfigError:
            await self.bury()
        else:
            took_s = time.monotonic() - began
            self.tell(f"{self.title} is back (pid {self.pid}, {took_s:.1f} s)")

    def tell_end(self) -> None:
        """Tell people that the process has ended and is restarted."""
        assert self.child is not None
        self.tell(f"{self.title} (pid {self.child.pid}) {self.child.ending}: restarting it")

    async def bury(self) -> None:
        """Kill what is left of the process and of its descendants."""
        if self.child:
            await self.child.end()
            self.forget()

    def forget(self) -> None:
        """The process is gone: the reaper need not look for it."""
        if self.child and self.reaper:
            self.reaper.remove(self.child)

    def obituary(self) -> str:
        """How the process ended, and the lines that explain it."""
        assert self.child is not None
        lines = "".join(f"\n    {line}" for line in self.last_words())
        return f"{self.title} (pid {self.child.pid}) {self.child.ending}{lines}"

    def _give_up(self) -> str:
        self.state = "failed"
        self.close()
        again = f" {self._num_short_lives} times in a row" if self._num_short_lives > 1 else ""
        self.given_up = (
            f"{self.obituary()}\n    given up: it ended{again}, and is not started any more"
        )
        return self.given_up
