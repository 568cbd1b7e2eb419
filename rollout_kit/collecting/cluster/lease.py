"""A lease: an attempt that one worker holds at a time; and the worker as the driver knows it."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from ...errors import RolloutError
from ...session import Session
from ...types import Attempt, JsonObject
from ..slot import Slot, Together
from .messages import add_spent, decode_error

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
        "_follow",
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
        "together",
    )

    def __init__(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        withdraw: Callable[["Lease"], bool],
        end: Callable[[Any], Any],
        attempt: Attempt | None = None,
        slot: Slot | None = None,
        together: Together = nullcontext,
        call: JsonObject | None = None,
        session: Session | None = None,
    ) -> None:
        super().__init__(loop=loop)
        self.number = number
        self._withdraw, self._end = withdraw, end
        self._follow: Callable[[Any], object] | None = None
        self.attempt, self.slot, self.call, self.session = attempt, slot, call, session
        self.together = together
        self.holder: Holder | None = None
        self.wait()
        self.given_up: asyncio.TimerHandle | None = None
        """Set once it is called back: when the wait for the answer is over."""
        self.num_lost = 0
        """Workers that were lost with it."""
        self.num_deaths = 0
        """Those whose process has ended: something that they held may have killed them."""

    def wait(self) -> None:
        """It is in the queue."""
        self.is_queued = True
        if self.slot is not None:
            self.slot.place.stage = "a worker"

    def cancel(self, msg: Any = None) -> bool:
        return not self.done() and self._withdraw(self)

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """The first function is called in the moment when the lease ends, as thousands end each
        second; others in the next turn of the event loop, as those of any future."""
        if self._follow is None and context is None and not self.done():
            self._follow = fn
        else:
            super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        if fn != self._follow:
            return super().remove_done_callback(fn)
        self._follow = None
        return 1 + super().remove_done_callback(fn)

    def read_answer(self, event: JsonObject) -> bytes | RolloutError:
        """What the server has answered, by the event of a call."""
        if (session := self.session) is not None and "spent" in event:
            add_spent(event["spent"], session.spent)
            session.stats |= event["stats"]
        return decode_error(event["error"]) if "error" in event else event["body"].encode()

    def conclude(self, found: Any) -> Any:
        """What it ends with, by an outcome or an answer, or by nothing: None; or the reason that it
        could not be kept."""
        if self.given_up is not None:
            self.given_up.cancel()
        try:
            return self._end(found)
        except Exception as error:
            return error

    def finish(self, found: Any) -> None:
        """Have it end with what `conclude` has returned."""
        if found is None:
            super().cancel()
        elif isinstance(found, Exception):
            self.set_exception(found)
        else:
            self.set_result(found)
        if (follow := self._follow) is not None:
            follow(self)

    @property
    def room(self) -> int | None:
        """How many leases a worker may hold beside it at most; None if it is above suspicion."""
        return max(1, TOGETHER >> 3 * (self.num_deaths - 1)) if self.num_deaths > 1 else None

    def update(self, **changes: Any) -> None:
        """Have another attempt go on from what this one has reached."""
        assert self.attempt is not None and self.slot is not None
        self.attempt = self.slot.attempt = self.attempt._replace(**changes)


def result_of(found: bytes | RolloutError | None) -> bytes | None:
    """What the caller of a server gets; its error is raised."""
    if isinstance(found, RolloutError):
        raise found
    return found


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

    def recall(self, number: int) -> None:
        """Have it cancel a lease."""
        self.recalled.append(number)
        self.wake()

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)
