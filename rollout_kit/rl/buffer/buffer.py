"""The interface of every buffer. A backend has the methods that decide at once; waiting, filters
and defaults are the same for all and are here."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Self, TypeVar

from ...errors import ConfigError
from ...types import JsonObject
from .group import BufferedGroup, GroupBatch, Settled, find_flaw
from .policy import BufferPolicy

T = TypeVar("T")

Figures = Mapping[str, float | None]
"""What a trainer tells of a step, by name. None, like NaN, is no number."""


class Buffer(ABC):
    """Groups of rollouts between collectors and trainers. The unit is a whole group.

    A producer reserves a place before it makes a group, and puts the group with its ticket. A
    consumer gets a batch under a lease, trains on it, and acknowledges it; a lease that runs out
    gives its groups to the next consumer. So a group is handed out at least once, and acknowledged
    once.
    """

    def __init__(self, policy: BufferPolicy, clock: Callable[[], float] | None = None) -> None:
        self.policy, self.clock = policy, clock or (lambda: time.monotonic())

    async def put(
        self, group: BufferedGroup, *, ticket: str = "", timeout_s: float | None = None
    ) -> str:
        """Store a group; `ok`, or why not: `duplicate`, `stale`, `full`, `too_large`, or the filter
        that it did not pass. Putting the same key again changes nothing."""
        if flaw := find_flaw(group, self.policy.filters):
            return await self._refuse(group.key, flaw, ticket)
        may_wait = self.policy.on_full == "block"

        async def try_once(wait_s: float) -> str | None:
            found = await self._put(group, ticket, wait_s)
            return None if found == "full" and may_wait else found

        return await self._until(try_once, timeout_s) or "full"

    async def get(
        self,
        number: int,
        *,
        at_least: int | None = None,
        max_staleness: int | None = None,
        timeout_s: float | None = None,
    ) -> GroupBatch | None:
        """A batch of `number` groups, or of `at_least` so many. None after the time limit, or when
        the buffer is finished and empty. Groups staler than `max_staleness` are dropped first; the
        default is the policy's. ConfigError if the policy never lets so many wait."""
        staleness = self.policy.staleness if max_staleness is None else max_staleness
        least = number if at_least is None else at_least
        if least > (most := self.policy.most_at_once):
            given = self.policy.model_dump(include={"batch", "staleness", "consume", "capacity"})
            said = ", ".join(f"{name}={value}" for name, value in given.items())
            raise ConfigError(f"get({least}): of this buffer ({said}) at most {most} wait at once")

        async def try_once(wait_s: float) -> GroupBatch | bool | None:
            found, is_finished = await self._get(number, least, staleness, wait_s)
            return found if found is not None else is_finished or None

        found = await self._until(try_once, timeout_s)
        return found if isinstance(found, GroupBatch) else None

    @abstractmethod
    async def reserve(self, number: int = 1, *, owner: str = "") -> list[str]:
        """Tickets for up to `number` groups that may be begun now; none if there is no room."""

    @abstractmethod
    async def release(self, tickets: Collection[str] = (), *, owner: str = "") -> None:
        """Give reserved places back; with an owner all of it, such as those of its earlier life."""

    @abstractmethod
    async def ack(self, lease: str, keys: Collection[str] | None = None) -> list[str]:
        """The trainer has used these groups, by default all of the lease; returns those that
        counted. Groups that another lease was given meanwhile do not."""

    @abstractmethod
    async def nack(
        self, lease: str, keys: Collection[str] | None = None, *, requeue: bool = True
    ) -> list[str]:
        """Give groups back, to be handed out again at once; or drop them."""

    @abstractmethod
    async def extend(self, lease: str) -> int:
        """Begin the time of a lease or ticket again; returns how many groups it still has."""

    @abstractmethod
    async def set_version(self, version: int, figures: Figures | None = None) -> None:
        """The trainer's weights are these now. A lower version than before begins a new count.
        `figures` are those of the step, by name, for the page and the trackers of collections."""

    @abstractmethod
    async def list_settled(self, after: str = "", number: int = 1000) -> list[Settled]:
        """Groups that have left since `after`: acknowledged, or dropped."""

    @abstractmethod
    async def stats(self) -> JsonObject:
        """Counters and sizes, for people and alarms."""

    @abstractmethod
    async def finish(self, is_finished: bool = True) -> None:
        """Nothing more will come or is needed: `get` no longer waits, and nothing can be reserved.
        With False it goes on."""

    async def close(self) -> None:  # noqa: B027 (not every backend has something to close)
        """Release connections and files; the content stays where it can."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abstractmethod
    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str: ...

    @abstractmethod
    async def _refuse(self, key: str, reason: str, ticket: str) -> str: ...

    @abstractmethod
    async def _get(
        self, number: int, least: int, staleness: int | None, wait_s: float
    ) -> tuple[GroupBatch | None, bool]:
        """What there is, and whether nothing more will come."""

    @abstractmethod
    async def _wait_for_change(self, wait_s: float) -> None:
        """Return when something may have changed, after `wait_s` at the latest."""

    async def _until(
        self, try_once: Callable[[float], Awaitable[T | None]], timeout_s: float | None
    ) -> T | None:
        """What `try_once` finds; None after the time limit."""
        ends = None if timeout_s is None else self.clock() + timeout_s
        while True:
            left = LOOK_S if ends is None else min(LOOK_S, ends - self.clock())
            if (found := await try_once(max(0.0, left))) is not None or left <= 0:
                return found
            await self._wait_for_change(left)


LOOK_S = 5.0
"""How often a waiting call looks, as leases end without a sign."""
