"""Estimates quantiles of a stream within 1 %, in little memory: counts in logarithmic buckets.

Sketches of shards can be merged (the idea of DDSketch, Masson et al. 2019).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log

GAMMA = 1.02
"""Ratio of a bucket's ends: every value in it is within 1 % of the middle."""

NOTHING = 1e-9
"""Numbers up to this one count as zeros."""

_LOG_GAMMA = log(GAMMA)


@dataclass(slots=True)
class Sketch:
    """Quantile sketch of non-negative numbers."""

    buckets: Counter[int] = field(default_factory=Counter)
    zeros: int = 0
    count: int = 0
    largest: float = 0.0

    def extend(self, values: Sequence[float]) -> None:
        """Count numbers."""
        above = [value for value in values if value > NOTHING]
        self.count += len(values)
        self.zeros += len(values) - len(above)
        if above:
            self.buckets.update([ceil(log(value) / _LOG_GAMMA) for value in above])
            self.largest = max(self.largest, *above)

    def merge(self, other: "Sketch") -> None:
        self.buckets.update(other.buckets)
        self.zeros += other.zeros
        self.count += other.count
        self.largest = max(self.largest, other.largest)

    def quantile(self, fraction: float) -> float:
        """The value below which `fraction` of the numbers lie, interpolated between neighbours;
        0 without numbers."""
        if not self.count:
            return 0.0
        rank = fraction * (self.count - 1)
        below = int(rank)
        low, high = self._at(below), self._at(min(below + 1, self.count - 1))
        return low + (rank - below) * (high - low)

    def _at(self, rank: int) -> float:
        """The number at `rank` in ascending order, from 0."""
        seen = self.zeros
        if rank < seen:
            return 0.0
        for index in sorted(self.buckets):
            seen += self.buckets[index]
            if rank < seen:
                return min(self.largest, 2 * GAMMA**index / (GAMMA + 1))
        return self.largest

    def summary(self) -> dict[str, float]:
        """p50, p95 and p99; empty without numbers."""
        if not self.count:
            return {}
        return {f"p{percent}": round(self.quantile(percent / 100), 6) for percent in (50, 95, 99)}
