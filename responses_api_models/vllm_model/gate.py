"""Holds requests back while the weights change: new ones wait, and time limits stand still, here
and at all who wait for a request."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from rollout_kit.errors import PeerTimeout
from rollout_kit.session import Session, current_session
from rollout_kit.time_limit import BEAT_S, extend_all, within

UNLIMITED_S = 1e9
"""Of a request whose time limit the gate holds."""


class Gate:
    """Open at first. It may be closed by several at a time, and opens after the last."""

    def __init__(self) -> None:
        self._num_closed = 0
        self._open = asyncio.Event()
        self._open.set()
        self._limits: set[within] = set()
        """One for each request that is in flight."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed_at = self._held_s = 0.0
        self._sessions: dict[int, list[Session]] = {}
        """Those of the requests that are being answered, as often as they have requests."""
        self._telling: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Seconds on a clock that stands still while the gate is closed."""
        return (time.monotonic() if self._open.is_set() else self._closed_at) - self._held_s

    async def wait(self) -> None:
        """Return when the gate is open."""
        while not self._open.is_set():
            await self._open.wait()

    async def drain(self) -> None:
        """Return when no request is in flight; with a closed gate, none follows."""
        await self._idle.wait()

    def close(self) -> None:
        self._num_closed += 1
        if self._num_closed == 1:
            self._closed_at = time.monotonic()
            self._open.clear()
            for limit in self._limits:
                limit.hold()
            self._extend(2 * BEAT_S)
            self._telling = asyncio.create_task(self._tell())

    def open(self) -> None:
        self._num_closed -= 1
        if not self._num_closed:
            self._held_s += time.monotonic() - self._closed_at
            for limit in self._limits:
                limit.renew()
            if self._telling:
                self._telling.cancel()
            self._open.set()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Context of a request: while the gate is closed, nobody's time limit for it ends."""
        if (session := current_session()) is None:
            yield
            return
        requests = self._sessions.setdefault(id(session), [])
        requests.append(session)
        if not self._open.is_set():
            extend_all(session.limits, 2 * BEAT_S)
        try:
            yield
        finally:
            requests.pop()
            if not requests:
                del self._sessions[id(session)]

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._extend(BEAT_S)

    def _extend(self, seconds: float) -> None:
        """Let all time limits of those who wait end so much later; a session's only once."""
        for session, *_ in self._sessions.values():
            extend_all(session.limits, seconds)

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
                self._idle.clear()
                if not self._open.is_set():
                    limit.hold()
                yield
        except TimeoutError:
            raise PeerTimeout(f"{url} did not answer within {seconds:g} s") from None
        finally:
            self._limits.discard(limit)
            if not self._limits:
                self._idle.set()
