"""What a choice does to the lengths of rollouts: short ones are done first, so a trainer that takes
what is done first, or drops what comes late, learns from shorter answers than its policy gives."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LengthSpread:
    """Of the output tokens of some rollouts."""

    number: int
    mean: float
    p50: float
    p95: float

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "LengthSpread":
        if len(lengths) < 2:
            only = float(sum(lengths))
            return cls(len(lengths), only, only, only)
        cuts = statistics.quantiles(lengths, n=20, method="inclusive")
        return cls(len(lengths), statistics.fmean(lengths), cuts[9], cuts[18])

    def __str__(self) -> str:
        return f"mean {self.mean:,.0f}, p50 {self.p50:,.0f}, p95 {self.p95:,.0f}"


@dataclass(frozen=True, slots=True)
class LengthBias:
    """Rollouts that were kept, and those that were left out or came later."""

    kept: LengthSpread
    others: LengthSpread

    @classmethod
    def of(cls, kept: Sequence[int], others: Sequence[int]) -> "LengthBias | None":
        """None if there is nothing to compare."""
        if not (kept and others):
            return None
        return cls(LengthSpread.of(kept), LengthSpread.of(others))

    @property
    def bias(self) -> float:
        """How much longer the kept ones are than all, as a share: -0.1 is 10 % shorter."""
        kept, others = self.kept, self.others
        total = kept.mean * kept.number + others.mean * others.number
        return kept.mean * (kept.number + others.number) / total - 1 if total else 0.0

    def describe(self) -> str:
        """`12 % shorter than all`."""
        return f"{abs(self.bias):.1%} {'shorter' if self.bias < 0 else 'longer'} than all"
