"""A lease: an attempt that one worker holds at a time; and the worker as the driver knows it."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from ..collector.slot import Slot
from ..session import Session
from ..types import Attempt, JsonObject
from .messages import encode_attempt

TOGETHER = 128
"""Leases that a worker may hold beside one with which a worker died; an eighth after each death."""

DEATHS_ALONE = 3
"""A lease that was with this many workers when they died, alone in the end, is what kills them."""


class Dismissed(Exception):
    """A worker that is believed to be gone speaks, and is to end."""


class NotAskedFor(Exception):
    """A worker speaks of something that it was never given."""


@dataclass(slots=True, eq=False)
class Lease:
    """An attempt, or one call to a server that workers run; `settled` gets what comes of it."""

    number: int
    settled: "asyncio.Future[Any]"
    attempt: Attempt | None = None
    slot: Slot | None = None
    call: JsonObject | None = None
    session: Session | None = None
    holder: "Holder | None" = None
    is_queued: bool = False
    num_lost: int = 0
    """Workers that were lost with it."""
    num_deaths: int = 0
    """Those whose process has ended: something that they held may have killed them."""

    @property
    def room(self) -> int | None:
        """How many leases a worker may hold beside it at most; None if it is above suspicion."""
        return max(1, TOGETHER >> 3 * (self.num_deaths - 1)) if self.num_deaths > 1 else None

    def update(self, **changes: Any) -> None:
        """Have another attempt go on from what this one has reached."""
        assert self.attempt is not None and self.slot is not None
        self.attempt = self.slot.attempt = replace(self.attempt, **changes)

    def message(self) -> JsonObject:
        if self.attempt is None:
            return {"lease": self.number, "call": self.call}
        return {"lease": self.number, "attempt": encode_attempt(self.attempt)}


@dataclass(slots=True, eq=False)
class Holder:
    """A worker as the driver knows it."""

    id: str
    title: str
    heard: float
    """When its event loop has spoken."""
    alive: float
    """When it has given a sign of life."""
    is_blocked: bool = False
    """Whether people know that only its event loop is silent."""
    held: dict[int, Lease] = field(default_factory=dict)
    recalled: list[int] = field(default_factory=list)
    """Leases that it is to cancel."""
    regained: list[tuple[int, bool]] = field(default_factory=list)
    waiting: "asyncio.Future[None] | None" = None
    """Set while it waits for something to do."""

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)
