"""The interface of every buffer. A backend brings operations to a `Shelf`, which decides at once;
waiting, filters and defaults are the same for all and are here."""

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

from ...errors import ConfigError, RolloutKitError
from ...types import JsonObject
from .group import BufferedGroup, GroupBatch, Settled, find_flaw
from .owners import LeaseOwner
from .policy import BufferPolicy

T = TypeVar("T")

log = logging.getLogger(__name__)

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
        self.owner = LeaseOwner.of_this_process()
        """Of the leases that this object is given."""
        self._looks_at = -math.inf

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
        owner: str | None = None,
    ) -> GroupBatch | None:
        """A batch of `number` groups, or of `at_least` so many. None after the time limit, or when
        the buffer is finished and empty. Groups staler than `max_staleness` are dropped first; the
        default is the policy's. ConfigError if the policy never lets so many wait.

        Groups come back first that a consumer held which has ended: it was killed on this machine,
        or this is the next life of its name. `owner` names a consumer for which this one asks."""
        holder, has_looked = str(self.owner) if owner is None else owner, False
        staleness = self.policy.staleness if max_staleness is None else max_staleness
        least = number if at_least is None else at_least
        if least > (most := self.policy.most_at_once):
            given = self.policy.model_dump(include={"batch", "staleness", "consume", "capacity"})
            said = ", ".join(f"{name}={value}" for name, value in given.items())
            raise ConfigError(f"get({least}): of this buffer ({said}) at most {most} wait at once")

        async def try_once(wait_s: float) -> GroupBatch | bool | None:
            nonlocal has_looked
            if self.clock() >= self._looks_at:
                others = await self._take_over(is_new=self._looks_at == -math.inf)
                self._looks_at = self.clock() + LOOK_S
                if has_looked and others:
                    said = ", ".join(f"{number} by {who}" for who, number in others.items())
                    log.warning(WAITING, said, self.policy.visibility_s)
                has_looked = True
            found, is_finished = await self._get(number, least, staleness, wait_s, holder)
            return found if found is not None else is_finished or None

        found = await self._until(try_once, timeout_s)
        return found if isinstance(found, GroupBatch) else None

    async def _take_over(self, *, is_new: bool) -> dict[str, int]:
        """Give back what consumers hold that have ended. The others, for people, and how many
        groups each holds."""
        others: dict[str, int] = {}
        for text, number in ((await self.stats()).get("owners") or {}).items():
            if (other := LeaseOwner.parse(text)) is None:
                others[text] = number
            elif self.owner.replaces(other, is_new=is_new):
                log.info("%s has ended: its groups come back", other.describe())
                await self.release(owner=text)
            elif other != self.owner:
                others[other.describe()] = number
        return others

    async def reserve(self, number: int = 1, *, owner: str = "") -> list[str]:
        """Tickets for up to `number` groups that may be begun now; none if there is no room."""
        return await self._do("reserve", number=number, owner=owner)

    async def release(self, tickets: Collection[str] = (), *, owner: str = "") -> None:
        """Give reserved places back; with an owner all of it, such as those of its earlier life,
        and the groups that it was handed out. Those do not count as handed out then."""
        await self._do("release", tickets=list(tickets), owner=owner)

    async def ack(self, lease: str, keys: Collection[str] | None = None) -> list[str]:
        """The trainer has used these groups, by default all of the lease; returns those that
        counted. Groups that another lease was given meanwhile do not."""
        return await self._do("ack", lease=lease, keys=None if keys is None else list(keys))

    async def nack(
        self, lease: str, keys: Collection[str] | None = None, *, requeue: bool = True
    ) -> list[str]:
        """Give groups back, to be handed out again at once; or drop them."""
        keys = None if keys is None else list(keys)
        return await self._do("nack", lease=lease, keys=keys, requeue=requeue)

    async def extend(self, lease: str) -> int:
        """Begin the time of a lease or ticket again; returns how many groups it still has."""
        return await self._do("extend", lease=lease)

    async def set_version(self, version: int, figures: Figures | None = None) -> None:
        """The trainer's weights are these now. A lower version than before begins a new count.
        `figures` are those of the step, by name, for the page and the trackers of collections."""
        await self._do("set_version", version=version, figures=dict(figures or {}))

    async def list_settled(self, after: str = "", number: int = 1000) -> list[Settled]:
        """Groups that have left since `after`: acknowledged, or dropped."""
        return await self._do("list_settled", after=after, number=number)

    async def stats(self) -> JsonObject:
        """Counters and sizes, for people and alarms."""
        return await self._do("stats")

    async def finish(self, is_finished: bool = True) -> None:
        """Nothing more will come or is needed: `get` no longer waits, and nothing can be reserved.
        With False it goes on."""
        await self._do("finish", is_finished=is_finished)

    async def hold_every(self, versions: int) -> None:
        """Hand out nothing at every so many versions, until `let_go`; 0: always hand out."""
        await self._do("hold_every", versions=versions)

    async def let_go(self, version: int, best: int | None = None) -> None:
        """Hand out groups at this version again. `best` is the version that is best on held-out
        tasks."""
        await self._do("let_go", version=version, best=best)

    async def close(self) -> None:  # noqa: B027 (not every backend has something to close)
        """Release connections and files; the content stays where it can."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is not None:  # nothing will acknowledge what this consumer holds
            with suppress(RolloutKitError, TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.release(owner=str(self.owner))
        await self.close()

    @abstractmethod
    async def _do(self, operation: str, **fields: Any) -> Any:
        """What the `Shelf` of this buffer returns for an operation."""

    @abstractmethod
    async def _put(self, group: BufferedGroup, ticket: str, wait_s: float) -> str: ...

    async def _refuse(self, key: str, reason: str, ticket: str) -> str:
        """Drop a group that does not pass a filter."""
        return await self._do("refuse", key=key, reason=reason, ticket=ticket)

    @abstractmethod
    async def _get(
        self, number: int, least: int, staleness: int | None, wait_s: float, owner: str
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
"""How often a waiting call looks, as leases and consumers end without a sign."""

WAITING = (
    "waiting for groups: %s are being used. Groups come back when their consumer gives them back or"
    " has been killed on this machine, else %g s after they were handed out (visibility_s)"
)
"""Said by a consumer that waits while others hold groups."""
