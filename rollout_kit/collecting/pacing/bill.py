"""The cost of a run so far. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...session import SNAPSHOT, Spent
from ...types import JsonObject, RolloutInfo


@dataclass(slots=True)
class Bill:
    """Sums over the rollouts that have ended, including failed ones and judges' calls. `rollouts`
    counts those with model calls; `…_squared` are sums of squares."""

    spent: Spent = field(default_factory=Spent)
    rollouts: int = 0
    usd_squared: float = 0.0
    tokens_squared: float = 0.0
    lost: Spent = field(default_factory=Spent)
    """The part of rollouts that failed."""

    def add(self, spent: Spent) -> None:
        """Add a rollout that has ended."""
        self.spent.add(spent)
        if spent.calls:
            self.rollouts += 1
            self.usd_squared += spent.usd * spent.usd
            self.tokens_squared += spent.tokens * spent.tokens

    def add_bill(self, other: "Bill") -> None:
        """Add the sums of another run."""
        self.spent.add(other.spent)
        self.rollouts += other.rollouts
        self.usd_squared += other.usd_squared
        self.tokens_squared += other.tokens_squared
        self.lost.add(other.lost)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report: no model calls, or only free ones."""
        return not (self.spent.usd or self.spent.unpriced)


def dollars(usd: float) -> str:
    """`$1,234.50`, `$0.42`, `$0.0017`: cents, or below $0.10 two significant digits."""
    if not usd:
        return "$0"
    digits = 2 if usd >= 0.1 else 1 - math.floor(math.log10(usd))
    return f"${usd:,.{min(digits, 9)}f}"


@dataclass(slots=True)
class Ledger:
    """What an attempt and those before it have cost."""

    spent: Spent = field(default_factory=Spent)
    earlier_usd: float | None = 0.0
    """Cost of a response that an earlier run left; None if it is unknown."""
    earlier_standard_usd: float | None = 0.0
    """The same at standard prices."""
    limited_s: float = 0.0
    """Time that earlier attempts, and the pauses after them, lost to a rate limit."""

    @property
    def billed_usd(self) -> float | None:
        """The same; None also if no model was called."""
        return self.cost_usd if self.spent.calls else None

    @property
    def cost_usd(self) -> float | None:
        """US dollars so far; None if unknown."""
        if self.earlier_usd is None or self.spent.unpriced:
            return None
        return round(self.earlier_usd + self.spent.usd, 9)

    @property
    def standard_usd(self) -> float | None:
        """The same at standard prices, without cache and batches."""
        if self.earlier_standard_usd is None or self.spent.unlisted:
            return None
        return round(self.earlier_standard_usd + self.spent.standard_usd, 9)

    def bring(self, info: RolloutInfo) -> None:
        """Begin with what a stored response has cost."""
        self.earlier_usd = info.cost_usd
        self.earlier_standard_usd = standard_of(info)

    def resume(self, turns: Sequence[JsonObject]) -> None:
        """Begin with what stored turns have cost."""
        turns = [turn for turn in turns if SNAPSHOT not in turn]
        self.earlier_usd = _sum(turns, "cost_usd")
        self.earlier_standard_usd = _sum(turns, "standard_usd")

    def costs(self) -> JsonObject:
        """Both, as the line has them; None if the price of a judge is unknown. What costs nothing
        has no other price."""
        cost, standard = self.cost_usd, self.standard_usd
        return {"cost_usd": cost, "standard_usd": standard if cost or standard else None}


def standard_of(info: RolloutInfo) -> float | None:
    """What a rollout would cost at standard prices; None if it is unknown."""
    return info.standard_usd if info.cost_usd != 0 else 0.0


def _sum(turns: Sequence[JsonObject], name: str) -> float | None:
    costs = [turn.get(name) for turn in turns]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
