"""Model servers that take the time of their tokens, and make none."""

import asyncio
import heapq
from collections import deque
from itertools import count

from .recording import Speed

ROUNDING = 1e-9


class SimulatedReplica:
    """At most `places` calls are computed at the same time; None: all. The others wait in turn."""

    def __init__(self, speed: Speed, places: int | None = None) -> None:
        self._speed, self._places = speed, places
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()
        self._running: list[tuple[float, int, asyncio.Future[None]]] = []
        """The tokens of each sequence so far at which a call ends."""
        self._made, self._then, self._numbers = 0.0, self._clock(), count()
        self._timer: asyncio.TimerHandle | None = None
        self.busy_s = 0.0
        """Time, weighted with the share of its places that were taken. Without a bound on them, the
        time in which there was a call."""

    @property
    def load(self) -> int:
        return len(self._running) + len(self._waiting)

    async def generate(self, tokens: int) -> None:
        """Return when so many tokens are made."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, done))
        self._go_on()
        await done

    def _go_on(self) -> None:
        """Begin what has a place, end what is made, and look again when the next call ends."""
        now = self._clock()
        if self._running:
            self._made += (now - self._then) / self._speed.token_s(len(self._running))
            self.busy_s += (
                (now - self._then) * len(self._running) / (self._places or len(self._running))
            )
        self._then = now
        while self._running and self._running[0][0] <= self._made + ROUNDING:
            done = heapq.heappop(self._running)[2]
            if not done.done():
                done.set_result(None)
        while self._waiting and (self._places is None or len(self._running) < self._places):
            tokens, done = self._waiting.popleft()
            if not done.done():
                heapq.heappush(self._running, (self._made + tokens, next(self._numbers), done))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running:
            left = max(0.0, self._running[0][0] - self._made)
            loop, pause_s = asyncio.get_running_loop(), self._speed.token_s(len(self._running))
            self._timer = loop.call_later(left * pause_s, self._go_on)

    def _clock(self) -> float:
        return asyncio.get_running_loop().time()
