"""A bounded number of warm workers, each leased to one caller at a time.

A worker whose caller fails, is cancelled or passes its deadline is killed, because its answer must
not reach the next caller. The next lease starts another. The pool does not know what a worker does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, Protocol, TypeVar


class Worker(Protocol):
    """A process that exists as soon as the object does. One that `is_spent` gets no more work."""

    is_spent: bool

    async def ready(self) -> None:
        """Wait until the worker can take work; return at once if it is ready already."""
        ...

    async def kill(self) -> None:
        """End the process and what it has started; return when it is gone."""
        ...


W = TypeVar("W", bound=Worker)


class WarmPool(Generic[W]):
    """At most `size` workers made by `make`.

    While others are at work, a lease waits `patience_s` for one of them before it makes another.
    """

    def __init__(self, size: int, make: Callable[[], W], patience_s: float = 0.0) -> None:
        self.is_closed = False
        self._make = make
        self._patience_s = patience_s
        self._free = asyncio.Semaphore(size)
        self._idle: list[W] = []
        self._busy: set[W] = set()
        self._returned = asyncio.Event()

    async def start(self, number: int) -> None:
        """Have `number` idle workers; raise what `ready` raises if one cannot start."""
        self.is_closed = False
        new = [self._make() for _ in range(number - len(self._idle))]
        try:
            for worker in new:
                await worker.ready()
        except BaseException:
            for worker in new:
                await worker.kill()
            raise
        self._idle += new

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[W]:
        """Context with a worker that no other caller has; killed if the context ends with an
        exception."""
        async with self._free:
            if self._busy and self._patience_s:
                await self._wait_for_idle()
            worker = self._idle.pop() if self._idle else self._make()
            self._busy.add(worker)
            is_sound = False
            try:
                await worker.ready()
                yield worker
                is_sound = True
            finally:
                self._busy.discard(worker)
                if is_sound and not worker.is_spent and not self.is_closed:
                    self._idle.append(worker)
                    self._returned.set()
                else:
                    if worker.is_spent and not self.is_closed:  # it starts while this one ends
                        self._idle.append(self._make())
                    await worker.kill()

    async def _wait_for_idle(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                while not self._idle:
                    self._returned.clear()
                    await self._returned.wait()

    async def close(self) -> None:
        """Kill every worker; the leases that are in use fail."""
        self.is_closed = True
        idle, self._idle = self._idle, []
        for worker in [*idle, *self._busy]:
            await worker.kill()
