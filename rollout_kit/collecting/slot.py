"""What an attempt in flight holds: a place among the others, and what came of it so far.

A response whose verdict is slow is written to disk, and gives its place to another attempt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..session import RETURNED, SNAPSHOT
from ..time_limit import Extendable, later
from ..types import Attempt, JsonObject, Outcome, StoredTurn, Unverified
from .pacing.bill import Ledger

KEEP_AFTER_S = 0.05
"""A verdict that takes longer has its response written to disk meanwhile. The following responses
are written at once, until a verdict is quick again; so a quick verifier costs no second line."""


class Place:
    """One attempt's place among those in flight."""

    __slots__ = ("freed_at", "has_waited", "number", "stage")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """Attempts that started before."""
        self.stage = "starting"
        """What the attempt is waiting for."""
        self.has_waited = False
        """Whether it has waited for a batch, so that its times say nothing."""
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

    def wait(self, *, is_waiting: bool) -> None:
        """Wait for a batch from now on, without a place; or no longer."""


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

    def keep_turn(self, turn: JsonObject) -> None:
        """Have the next attempt continue from a turn. Only another run continues from a snapshot,
        which is large, and nothing continues from what came back for a turn."""
        if SNAPSHOT not in turn and RETURNED not in turn:
            self.turns.append(turn)

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
