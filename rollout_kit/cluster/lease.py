"""A lease: an attempt that one worker holds at a time; and the worker as the driver knows it."""

import asyncio
from collections.abc import Callable
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


class Lease(asyncio.Future[Any]):
    """An attempt, or one call to a server that workers run: the future of what comes of it.

    `end` is called once with what came of it, None if that is nothing, and makes the result of it;
    `withdraw` is what to cancel the lease does.
    """

    __slots__ = (
        "_end",
        "_withdraw",
        "attempt",
        "call",
        "given_up",
        "holder",
        "is_queued",
        "num_deaths",
        "num_lost",
        "number",
        "session",
        "slot",
    )

    def __init__(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        withdraw: Callable[["Lease"], bool],
        end: Callable[[Any], Any],
        *,
        attempt: Attempt | None = None,
        slot: Slot | None = None,
        call: JsonObject | None = None,
        session: Session | None = None,
    ) -> None:
        super().__init__(loop=loop)
        self.number = number
        self._withdraw, self._end = withdraw, end
        self.attempt, self.slot, self.call, self.session = attempt, slot, call, session
        self.holder: Holder | None = None
        self.is_queued = False
        self.given_up: asyncio.TimerHandle | None = None
        """Set once it is called back: when the wait for the answer is over."""
        self.num_lost = 0
        """Workers that were lost with it."""
        self.num_deaths = 0
        """Those whose process has ended: something that they held may have killed them."""

    def cancel(self, msg: Any = None) -> bool:
        return not self.done() and self._withdraw(self)

    def settle(self, found: Any) -> None:
        """Have it end with an outcome or an answer, an error, or nothing."""
        if self.given_up is not None:
            self.given_up.cancel()
        try:
            found = self._end(found)
        except Exception as error:
            self.set_exception(error)
        else:
            super().cancel() if found is None else self.set_result(found)

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
