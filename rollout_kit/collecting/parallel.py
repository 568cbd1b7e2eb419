"""The limit on what is in flight, which may be changed while a run goes on. Several runs may share
one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from ..config.keys import Parallelism
from ..serving.transport.loop import beside
from .pacing.budget import Budget
from .pacing.limiter import Limiter, limiter_of, steer
from .pacing.meter import Meter


class Sharer(Protocol):
    """A run that shares a limit with others."""

    @property
    def num_running(self) -> int:
        """Its rollouts in flight."""
        ...

    @property
    def num_left(self) -> int:
        """Rollouts that it could begin now if it had places."""
        ...

    def refresh(self) -> None:
        """Look again at the limit, and at the budget."""
        ...


class ParallelLimit:
    """Called for the limit; `asked` is what it was set to."""

    def __init__(self, asked: Parallelism, limiter: Limiter | None = None) -> None:
        self.asked = asked
        self.limiter: Limiter = limiter or limiter_of(asked)
        self._meters: list[Meter] = []
        self._changed = asyncio.Event()

    def __call__(self) -> int:
        return self.limiter()

    def tell(self, meter: Meter) -> Meter:
        """Have a meter know each limiter; returns it."""
        self._meters.append(meter)
        return meter

    def limit_for(self, sharer: Sharer) -> Callable[[], int]:
        """What tells a run how many rollouts it may have in flight."""
        return self

    def num_running(self, sharer: Sharer) -> int:
        """The rollouts in flight that the limit is about."""
        return sharer.num_running

    def set(self, asked: Parallelism) -> None:
        """Go on with another limit, or within other bounds."""
        now = asyncio.get_running_loop().time()
        self.asked, self.limiter = asked, steer(self.limiter, now, asked)
        for meter in self._meters:
            meter.switch(self.limiter)
        self._changed.set()

    async def watch(self, follow: Callable[[Limiter], Coroutine[Any, Any, None]]) -> None:
        """Have `follow` feed each limiter with loads while it is in use; until cancelled."""
        while True:
            followed = self.limiter
            async with beside(follow(followed)):
                while self.limiter is followed:
                    self._changed.clear()
                    await self._changed.wait()


class SharedLimit(ParallelLimit):
    """One limit for several runs that have one budget. Each has a share in proportion to what it
    has left to begin, and the places that the others do not use."""

    def __init__(self, asked: Parallelism, budget: Budget) -> None:
        super().__init__(asked)
        self._budget = budget
        self._sharers: list[Sharer] = []
        self._watched = asyncio.Lock()

    def limit_for(self, sharer: Sharer) -> Callable[[], int]:
        self._sharers.append(sharer)
        return lambda: self._limit_of(sharer)

    def num_running(self, sharer: Sharer) -> int:
        return sum(each.num_running for each in self._sharers)

    def refresh(self, but: Sharer | None = None) -> None:
        """Have the runs look for free places, and whether the budget is spent."""
        for each in self._sharers:
            if each is not but:
                each.refresh()

    async def watch(self, follow: Callable[[Limiter], Coroutine[Any, Any, None]]) -> None:
        """The same; of several runs one at a time follows, so that no load counts twice."""
        async with self._watched:
            await super().watch(follow)

    def _limit_of(self, sharer: Sharer) -> int:
        limit = int(min(self.limiter(), self._budget.room()))
        others = [each for each in self._sharers if each is not sharer]
        taken = sum(each.num_running for each in others)
        shares = share_out(limit, [sharer.num_left, *(each.num_left for each in others)])
        kept = sum(
            max(0, share - each.num_running) for each, share in zip(others, shares[1:], strict=True)
        )
        return max(0, limit - taken - kept)


def share_out(limit: int, left: Sequence[int]) -> list[int]:
    """Places for each of several runs: in proportion to what they have left, and at least one for
    each that has something left, as far as they go round. What a run has left bounds its share."""
    shares: list[int] = []
    for each in left:
        shares.append(1 if each and sum(shares) < limit else 0)
    free = limit - sum(shares)
    wanted = [each - share for each, share in zip(left, shares, strict=True)]
    whole = sum(wanted)
    if free <= 0 or not whole:
        return shares
    more = [min(each, free * each // whole) for each in wanted]
    rest = min(free, whole) - sum(more)
    for at in sorted(range(len(left)), key=lambda at: -(free * wanted[at] % whole))[:rest]:
        more[at] += more[at] < wanted[at]
    return [share + each for share, each in zip(shares, more, strict=True)]
