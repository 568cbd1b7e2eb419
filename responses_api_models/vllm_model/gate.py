"""Holds requests back while the weights change: new ones wait, and time limits stand still."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from rollout_kit.errors import PeerTimeout
from rollout_kit.time_limit import within

UNLIMITED_S = 1e9
"""Of a request whose time limit the gate holds."""


class Gate:
    """Open at first. It may be closed by several at a time, and opens after the last."""

    def __init__(self) -> None:
        self._num_closed = 0
        self._open = asyncio.Event()
        self._open.set()
        self._limits: set[within] = set()
        self._closed_at = self._held_s = 0.0

    def now(self) -> float:
        """Seconds on a clock that stands still while the gate is closed."""
        return (time.monotonic() if self._open.is_set() else self._closed_at) - self._held_s

    async def wait(self) -> None:
        """Return when the gate is open."""
        while not self._open.is_set():
            await self._open.wait()

    def close(self) -> None:
        self._num_closed += 1
        if self._num_closed == 1:
            self._closed_at = time.monotonic()
            self._open.clear()
            for limit in self._limits:
                limit.hold()

    def open(self) -> None:
        self._num_closed -= 1
        if not self._num_closed:
            self._held_s += time.monotonic() - self._closed_at
            for limit in self._limits:
                limit.renew()
            self._open.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        self.close()
        try:
            yield
        finally:
            self.open()

    @contextmanager
    def limit(self, seconds: float, url: str) -> Iterator[None]:
        """Context that raises PeerTimeout after this time; a closed gate starts it again."""
        limit = within(seconds)
        try:
            with limit:
                self._limits.add(limit)
                if not self._open.is_set():
                    limit.hold()
                yield
        except TimeoutError:
            raise PeerTimeout(f"{url} did not answer within {seconds:g} s") from None
        finally:
            self._limits.discard(limit)
