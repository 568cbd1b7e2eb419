"""The buffer in memory: groups are passed on as they are, without a copy. With a spool on disk it
survives its process."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

from ...types import JsonObject
from .buffer import Buffer, Figures
from .group import BufferedGroup, GroupBatch, Settled
from .policy import BufferPolicy
from .shelf import Shelf, new_name
from .spool import Spool


class MemoryBuffer(Buffer):
    """`spool` is a file that holds what waits here; a later buffer with this file continues."""

    def __init__(
        self,
        policy: BufferPolicy | None = None,
        *,
        spool: Path | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(policy or BufferPolicy(), clock)
        self._waiting: set[asyncio.Future[None]] = set()
        self._spool = Spool(spool) if spool else None
        note = self._spool.append if self._spool else lambda *change: None
        self.shelf = Shelf(self.policy, self.clock, note)
        if self._spool:
            self._spool.restore(self.shelf)

    async def reserve(self, number: int = 1, *, owner: str = "") -> list[str]:
        return self.shelf.reserve(number, new_name(owner))

    async def release(self, tickets: Collection[str] = (), *, owner: str = "") -> None:
        self.shelf.release(tickets, owner)
        self._wake()

    async def ack(self, lease: str, keys: Collection[str] | None = None) -> list[str]:
        return self._woken(self.shelf.ack(lease, keys))

    async def nack(
        self, lease: str, keys: Collection[str] | None = None, *, requeue: bool = True
    ) -> list[str]:
        return self._woken(self.shelf.nack(lease, keys, requeue))

    async def extend(self, lease: str) -> int:
        return self.shelf.extend(lease)

    async def set_version(self, version: int, figures: Figures | None = None) -> None:
        self.shelf.set_version(version, dict(figures or {}))
        self._wake()

    async def list_settled(self, after: str = "", number: int = 1000) -> list[Settled]:
        return self.shelf.list_settled(after, number)

    async def stats(self) -> JsonObject:
        return self.shelf.stats()

    async def finish(self, is_finished: bool = True) -> None:
        self.shelf.finish(is_finished)
        self._wake()

    async def close(self) -> None:
        if self._spool:
            self._spool.close()

    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str:
        size = len(group.encode()) if self.policy.capacity_bytes is not None else 0
        found = self.shelf.put(group, size, ticket)
        if self._waiting and found == "ok":
            self._wake()
        return found

    async def _refuse(self, key: str, reason: str, ticket: str) -> str:
        return self.shelf.refuse(key, reason, ticket)

    async def _get(
        self, number: int, least: int, staleness: int | None, wait_s: float, owner: str
    ) -> tuple[GroupBatch | None, bool]:
        shelf, num = self.shelf, len(self.shelf)
        taken = shelf.take(number, least, staleness, new_name(owner))
        if len(shelf) < num:  # what was dropped made room
            self._wake()
        if taken is None:
            return None, shelf.is_finished and not shelf.held
        return GroupBatch(taken.lease, [each.group for each in taken.entries], shelf.version), False

    async def _wait_for_change(self, wait_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=wait_s)
        finally:
            self._waiting.discard(waiter)

    def _woken(self, done: list[str]) -> list[str]:
        self._wake()
        return done

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
