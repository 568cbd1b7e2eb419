"""The buffer in memory: groups are passed on as they are, without a copy. With a spool on disk it
survives its process."""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..bucket import read_place
from .bucket_spool import BucketSpool
from .buffer import Buffer
from .group import BufferedGroup, GroupBatch
from .policy import BufferPolicy
from .shelf import NAMING, Shelf
from .spool import Spool

SILENT = frozenset({"reserve", "refuse", "extend", "list_settled", "stats"})
"""Operations after which no call that waits has another result."""


class MemoryBuffer(Buffer):
    """`spool` is a file, or s3://bucket/path, that holds what waits here; a later buffer with it
    continues."""

    def __init__(
        self,
        policy: BufferPolicy | None = None,
        *,
        spool: str | Path | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(policy or BufferPolicy(), clock)
        self._waiting: set[asyncio.Future[None]] = set()
        self._spool = _open_spool(spool) if spool else None
        note = self._spool.append if self._spool else lambda *change: None
        self.shelf = Shelf(self.policy, self.clock, note)
        if self._spool:
            self._spool.restore(self.shelf)

    async def _do(self, operation: str, **fields: Any) -> Any:
        self._catch_up()
        if operation in NAMING:
            fields["token"] = secrets.token_hex(8)
        found = getattr(self.shelf, operation)(**fields)
        if operation not in SILENT:
            self._wake()
        return found

    async def close(self) -> None:
        if self._spool:
            self._spool.close()

    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str:
        self._catch_up()
        size = len(group.encode()) if self.policy.capacity_bytes is not None else 0
        found = self.shelf.put(group, size, ticket)
        if self._waiting and found == "ok":
            self._wake()
        return found

    async def _get(
        self, number: int, least: int, staleness: int | None, wait_s: float, owner: str
    ) -> tuple[GroupBatch | None, bool]:
        self._catch_up()
        shelf, num = self.shelf, len(self.shelf)
        taken = shelf.take(number, least, staleness, owner, secrets.token_hex(8))
        if len(shelf) < num:  # what was dropped made room
            self._wake()
        if taken is None:
            return None, shelf.is_finished and not shelf.held
        groups = [each.group for each in taken.entries]
        return GroupBatch(taken.lease, groups, taken.version), False

    async def _wait_for_change(self, wait_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=wait_s)
        finally:
            self._waiting.discard(waiter)

    def _catch_up(self) -> None:
        """Nothing is confirmed on the ground of a change that could not be written."""
        if self._spool:
            self._spool.catch_up()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _open_spool(place: str | Path) -> Spool | BucketSpool:
    if url := read_place(place, "spool"):
        return BucketSpool(url)
    return Spool(Path(place))
