"""The cost of a run: so far, projected to its end, and per minute. Pure."""

import math
from dataclasses import dataclass, field

from ...session import Spent
from ...types import JsonObject


@dataclass(slots=True)
class Bill:
    """Sums over the rollouts that have ended, including failed ones and judges' calls. `rollouts`
    counts those with model calls; `…_squared` are sums of squares."""

    spent: Spent = field(default_factory=Spent)
    rollouts: int = 0
    usd_squared: float = 0.0
    tokens_squared: float = 0.0

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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report: no model calls, or only free ones."""
        return not (self.spent.usd or self.spent.unpriced)

    def projected_usd(self, finished: int, wanted: int | None) -> float | None:
        """Expected cost of all `wanted` rollouts of this run, at the mean cost so far."""
        if not finished or wanted is None or self.spent.cost_usd is None:
            return None
        return self.spent.usd * max(wanted, finished) / finished

    def parts(self, finished: int, wanted: int | None, elapsed_s: float) -> dict[str, str]:
        """Parts of the progress line."""
        if not self.spent.usd:
            return {}
        least = ">" if self.spent.unpriced else "="
        projected = self.projected_usd(finished, wanted)
        end = "" if projected is None else f"→{dollars(projected)}"
        per_minute = dollars(self.spent.usd * 60 / max(elapsed_s, 1e-6))
        return {"cost": f"cost{least}{dollars(self.spent.usd)}{end}", "burn": f"{per_minute}/min"}

    def figures(self, finished: int, wanted: int | None, elapsed_s: float) -> JsonObject:
        """The same as JSON, of this run, in US dollars; null if unknown."""
        cost = self.spent.cost_usd
        return {
            "usd": cost,
            "usd_per_minute": None if cost is None else cost * 60 / max(elapsed_s, 1e-6),
            "projected_usd": self.projected_usd(finished, wanted),
            "tokens": self.spent.tokens,
            "unpriced_calls": self.spent.unpriced,
        }

    def sentence(self, finished: int, elapsed_s: float) -> str:
        """The sentence at the end of a run."""
        spent = self.spent
        if not spent.usd:
            return (
                "Cost: not known; give the model's server `prices`, in US dollars per million"
                " tokens"
            )
        each = f", {dollars(spent.usd / finished)} a rollout" if finished else ""
        rate = f"{dollars(spent.usd * 60 / max(elapsed_s, 1e-6))} a minute"
        text = f"Cost: {dollars(spent.usd)} in this run{each}, {rate}"
        if spent.unpriced:
            text += f"; the price of {spent.unpriced:,} of {spent.calls:,} model calls is not known"
        return text


def dollars(usd: float) -> str:
    """`$1,234.50`, `$0.42`, `$0.0017`: cents, or below $0.10 two significant digits."""
    if not usd:
        return "$0"
    digits = 2 if usd >= 0.1 else 1 - math.floor(math.log10(usd))
    return f"${usd:,.{min(digits, 9)}f}"
