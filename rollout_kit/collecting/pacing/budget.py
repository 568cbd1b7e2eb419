"""Limits on what a run may use: `max_cost_usd`, `max_total_tokens`. Pure: it stops nothing itself.

The cost of a rollout is known when it ends. To stay below the limits, no more rollouts may be in
flight than the remaining budget covers at the cost of earlier ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .bill import Bill, dollars


@dataclass(slots=True)
class Budget:
    """The limits of the runs that it is given to, each with a bill; what was spent before does not
    count. None: no limit.

    `max_cost_usd` is in US dollars, `max_total_tokens` counts input and output. Runs that share a
    budget stop when all of them together have reached a limit.

    Example:

        budget = rk.Budget(max_cost_usd=5.0, max_total_tokens=1_000_000)
        for limit in (1, 2):
            run = rk.collect(
                rows, model=lambda params: "4", environment="string_match", limits=budget
            )
            await run
        print(budget.total.spent.tokens)
    """

    max_cost_usd: float | None = None
    max_total_tokens: int | None = None
    bills: list[Bill] = field(default_factory=list[Bill])
    known: Bill = field(default_factory=Bill)
    """What rollouts of earlier runs have cost: it says what to expect, and does not count."""
    is_careful: bool = False
    """Whether one rollout begins alone as long as the cost of none is known."""

    @property
    def is_open(self) -> bool:
        """Whether there is no limit."""
        return self.max_cost_usd is None and self.max_total_tokens is None

    @property
    def total(self) -> Bill:
        """What all of its runs have used so far."""
        if len(self.bills) == 1:
            return self.bills[0]
        total = Bill()
        for bill in self.bills:
            total.add_bill(bill)
        return total

    def room(self) -> int | float:
        """Rollouts that may be in flight: 0 if the next one would exceed a limit, infinite before
        the first one has ended, unless it is careful."""
        return math.inf if self.is_open else min(self._money(), self._tokens())

    def describe_reached(self) -> str:
        """A sentence on the limit that leaves no room."""
        total, runs = self.total, "this run" if len(self.bills) == 1 else "its runs"
        spent, rollouts = total.spent, total.rollouts
        if not rollouts:
            return "max_cost_usd or max_total_tokens is less than one rollout is expected to use"
        if not self._money():
            each = dollars(spent.usd / rollouts)
            return (
                f"max_cost_usd={self.max_cost_usd:g} is reached: {dollars(spent.usd)} in {runs},"
                f" {each} a rollout"
            )
        return (
            f"max_total_tokens={self.max_total_tokens} is reached: {spent.tokens:,} in {runs},"
            f" {spent.tokens / rollouts:,.0f} a rollout"
        )

    def _money(self) -> int | float:
        used, seen = self.total.spent.usd, self._seen()
        expected = Expected(seen.spent.usd, seen.usd_squared, seen.rollouts)
        return self._room(self.max_cost_usd, used, expected)

    def _tokens(self) -> int | float:
        used, seen = self.total.spent.tokens, self._seen()
        expected = Expected(seen.spent.tokens, seen.tokens_squared, seen.rollouts)
        return self._room(self.max_total_tokens, used, expected)

    def _seen(self) -> Bill:
        """What rollouts have cost, those of earlier runs among them."""
        if not self.known.rollouts:
            return self.total
        seen = Bill()
        seen.add_bill(self.total)
        seen.add_bill(self.known)
        return seen

    def _room(self, most: float | None, used: float, seen: "Expected") -> int | float:
        """How many rollouts may be in flight for the total to stay below `most`.

        The next one is expected to use the mean, those in flight more: a rollout's chance to be in
        flight is proportional to its length, so their mean is the sum of squares over the sum.
        """
        if most is None:
            return math.inf
        if not seen.rollouts or not seen.used:
            return 1 if self.is_careful and not seen.rollouts else math.inf
        left = most - used - seen.used / seen.rollouts
        return 1 + int(left * seen.used / seen.squared) if left >= 0 else 0


class Expected(NamedTuple):
    """What rollouts have used: the sum, the sum of squares, and their number."""

    used: float
    squared: float
    rollouts: int


def within(limit: Callable[[], int], budget: Budget) -> Callable[[], int]:
    """`limit`, lowered to the room that the budget leaves."""
    return lambda: int(min(limit(), budget.room()))
