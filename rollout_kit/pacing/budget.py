"""What a run may use: `max_cost_usd`, `max_total_tokens`. Pure: judges a bill, and stops nothing.

Rollouts in flight are paid for when they end. So that they do not carry a run beyond its limit, no
more of them are started than can be paid for, going by what those before have cost.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..config.keys.commands import RolloutsCommand
from .bill import Bill, dollars


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one run: what earlier runs have spent does not count."""

    bill: Bill
    max_cost_usd: float | None = None
    max_total_tokens: int | None = None

    @classmethod
    def of(cls, command: RolloutsCommand, bill: Bill) -> "Budget | None":
        """None where nothing is limited."""
        if command.max_cost_usd is None and command.max_total_tokens is None:
            return None
        return cls(bill, command.max_cost_usd, command.max_total_tokens)

    def room(self) -> int | float:
        """Rollouts that may be in flight; 0 when the next one would go beyond a limit, infinite as
        long as none has shown what it costs."""
        return min(self._money(), self._tokens())

    def describe_reached(self) -> str:
        """Which limit there is no room below, in words."""
        spent, rollouts = self.bill.spent, self.bill.rollouts
        if not self._money():
            each = dollars(spent.usd / rollouts)
            return (
                f"max_cost_usd={self.max_cost_usd:g} is reached: {dollars(spent.usd)} in this run,"
                f" {each} a rollout"
            )
        return (
            f"max_total_tokens={self.max_total_tokens} is reached: {spent.tokens:,} in this run,"
            f" {spent.tokens / rollouts:,.0f} a rollout"
        )

    def _money(self) -> int | float:
        bill = self.bill
        return _room(self.max_cost_usd, bill.spent.usd, bill.usd_squared, bill.rollouts)

    def _tokens(self) -> int | float:
        bill = self.bill
        return _room(self.max_total_tokens, bill.spent.tokens, bill.tokens_squared, bill.rollouts)


def within(limit: Callable[[], int], budget: Budget | None) -> Callable[[], int]:
    """The limit on what is in flight, lowered to what there is room for."""
    if budget is None:
        return limit
    return lambda: int(min(limit(), budget.room()))


def _room(most: float | None, used: float, squared: float, rollouts: int) -> int | float:
    """How many may be in flight so that they end below `most`.

    The next one will use the mean. Those that are in flight use more: at any moment it is the long
    ones that are met, in proportion to their length, and their mean is that of squares over sums.
    """
    if most is None or not rollouts or not used:
        return math.inf
    left = most - used - used / rollouts
    return 1 + int(left * used / squared) if left >= 0 else 0
