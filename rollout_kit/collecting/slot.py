"""What an attempt in flight holds: its place among the others, its costs, its stored responses; and
how it begins.

The base class `Place` is a place among no others; a schedule has its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..serving.transport.loop import step
from ..session import Spent
from ..time_limit import Extendable, later, running_loop
from ..types import Attempt, JsonObject, Outcome, StoredTurn, Unverified

KEEP_AFTER_S = 0.05
"""A verdict that takes longer has its response written to disk meanwhile. The following responses
are written at once, until a verdict is quick again; so a quick verifier costs no second line."""


class Place:
    """One attempt's place among those in flight."""

    __slots__ = ("freed_at", "number", "stage")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """Attempts that started before."""
        self.stage = "starting"
        """What the attempt is waiting for."""
        self.freed_at: float | None = None
        """`perf_counter` time at which the place was given to other attempts."""

    def hand_out(self, unverified: Unverified) -> None:
        """Have a response written to disk now."""

    def store_turn(self, turn: StoredTurn) -> None:
        """Have a turn written to disk now."""

    def free(self) -> None:
        """Let another attempt start, unless too many verdicts are awaited already."""

    async def regain(self) -> bool:
        """Wait for a place again; False if nothing more may start."""
        return True


@dataclass(slots=True)
class Ledger:
    """What an attempt and those before it have cost."""

    spent: Spent = field(default_factory=Spent)
    earlier_usd: float | None = 0.0
    """Cost of a response that an earlier run left; None if it is unknown."""
    limited_s: float = 0.0
    """Time that earlier attempts, and the pauses after them, lost to a rate limit."""

    @property
    def cost_usd(self) -> float | None:
        """US dollars so far; None if unknown."""
        if self.earlier_usd is None or self.spent.unpriced:
            return None
        return round(self.earlier_usd + self.spent.usd, 9)


@dataclass(slots=True, eq=False)
class HeldTime:
    """Time in which a model's weights changed; it counts for no limit."""

    seconds: float = 0.0

    def extend(self, seconds: float) -> None:
        self.seconds += seconds

    def left(self) -> float:
        return inf


@dataclass(slots=True)
class Slot:
    """One attempt in flight."""

    place: Place = field(default_factory=Place)
    ledger: Ledger = field(default_factory=Ledger)
    parked: Unverified | None = None
    """The response that is on disk and waits for its verdict. While there is one the attempt is
    about this response, unless `regain` allows another."""
    turns: list[JsonObject] = field(default_factory=list)
    """The turns that the next attempt can continue from."""
    attempt: Attempt | None = None
    """What is attempted."""
    limits: list[Extendable] = field(default_factory=list)
    """Those of the attempt that run now."""
    stats: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Statistics of the latest session."""
    is_stored: bool = False
    """Whether it began with a response of an earlier run."""
    in_flight: int = 1
    """Attempts that held a place when it began, this one included."""
    began: float = 0.0
    """`perf_counter` time."""
    worked_s: float | None = None
    """Time that a worker has spent on it while it held its place; None without workers."""
    withdraw: "Callable[[Slot], Outcome | None] | None" = None
    """Called if the attempt is cancelled on its own, while the run goes on."""

    @property
    def freed_at(self) -> float | None:
        return self.place.freed_at

    @property
    def limited_s(self) -> float:
        return self.ledger.limited_s

    def keep(self, unverified: Unverified) -> None:
        """Have the first response of this slot written to disk."""
        if self.parked is None:
            self.parked = unverified
            self.place.hand_out(unverified)

    def park(self, unverified: Unverified) -> None:
        """Keep the response and free the place; a response of an earlier run keeps its place."""
        self.keep(unverified)
        if self.parked is unverified:
            self.place.free()

    async def regain(self) -> bool:
        """Wait for a place to collect the parked rollout again; False if nothing may start."""
        if await self.place.regain():
            self.parked = None
            return True
        return False


Keep = Callable[[Outcome], Outcome]

Together = Callable[[], AbstractContextManager[None]]
"""A context at whose end the outcomes that were kept within it are on disk."""

Work = Callable[[Attempt, Slot, Keep], "asyncio.Future[Outcome]"]
"""Begins an attempt. Its outcome goes through `keep` as soon as it is there, and then is the result
of the future; to cancel the future is to stop the attempt."""


class AttemptTasks:
    """Begins attempts as tasks of their own. What ends in one turn of the loop is kept in the next,
    `together`: one `write` takes less time than several."""

    __slots__ = ("_ended", "together")

    def __init__(self, together: Together = nullcontext) -> None:
        self.together = together
        self._ended: list[_Ended] = []

    def begin(
        self,
        work: Callable[[Attempt, Slot], Awaitable[Outcome]],
        attempt: Attempt,
        slot: Slot,
        keep: Keep,
    ) -> "asyncio.Task[Outcome]":
        async def run() -> Outcome:
            ended = _Ended(await work(attempt, slot), keep)
            self._ended.append(ended)
            with suppress(asyncio.CancelledError):  # too late: the outcome is there
                await step
            if not ended.was_tried:
                self._keep_all()
            if ended.error is not None:
                raise ended.error
            return ended.outcome

        return running_loop().create_task(run())

    def _keep_all(self) -> None:
        all_ended, self._ended = self._ended, []
        try:
            with self.together():
                for ended in all_ended:
                    ended.try_to_keep()
        except Exception as error:  # not all are on disk, which ends the run
            for ended in all_ended:
                ended.error = ended.error or error


@dataclass(slots=True, eq=False)
class _Ended:
    """The outcome of an attempt that has ended."""

    outcome: Outcome
    keep: Keep
    was_tried: bool = False
    """Whether it was kept, or could not be."""
    error: Exception | None = None
    """Why it could not be."""

    def try_to_keep(self) -> None:
        self.was_tried = True
        try:
            self.outcome = self.keep(self.outcome)
        except Exception as error:
            self.error = error


class parked_when_slow:
    """Context around the wait for one verdict. `slow` holds the agents whose last one was slow."""

    __slots__ = (
        "_agent",
        "_made",
        "_make",
        "_park_after_s",
        "_slot",
        "_slow",
        "_timer",
        "_took_long",
    )

    def __init__(
        self,
        slot: Slot,
        agent: str,
        unverified: Callable[[], Unverified],
        slow: set[str],
        park_after_s: float,
    ) -> None:
        self._slot, self._agent = slot, agent
        self._make = unverified
        self._made: Unverified | None = None
        self._slow, self._park_after_s = slow, park_after_s
        self._took_long = False

    def __enter__(self) -> None:
        if self._agent in self._slow:
            self._slot.keep(self._make_unverified())
        soon_s = min(KEEP_AFTER_S, self._park_after_s)
        self._timer = later(soon_s, self._takes_long)

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if raised is None and not self._took_long:
            self._slow.discard(self._agent)

    def _takes_long(self) -> None:
        self._took_long = True
        self._slow.add(self._agent)
        self._slot.keep(self._make_unverified())
        left_s = max(0.0, self._park_after_s - KEEP_AFTER_S)
        self._timer = later(left_s, self._park)

    def _park(self) -> None:
        self._slot.park(self._make_unverified())

    def _make_unverified(self) -> Unverified:
        """The response, made once and only if it is needed."""
        self._made = self._made or self._make()
        return self._made
