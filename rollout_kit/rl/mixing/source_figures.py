"""Figures of each source of a mix: rewards, groups that teach nothing, staleness and tokens."""

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from ...store.lines import info_of
from ..buffer.group import BufferedGroup, Settled, find_flaw

RECENT = 100
"""Groups that means are taken over: a policy that learns makes older ones meaningless."""


def _recent() -> deque[float]:
    return deque(maxlen=RECENT)


@dataclass(slots=True)
class SourceFigures:
    """Follows the groups of one source."""

    rewards: deque[float] = field(default_factory=_recent)
    """Mean reward of each group, as the verifier gave it."""
    is_flat: deque[float] = field(default_factory=_recent)
    """Whether all rewards of a group are equal."""
    lags: deque[float] = field(default_factory=_recent)
    """Staleness of each group that was used."""
    tokens: int = 0
    """Output tokens of all groups."""

    def add(self, group: BufferedGroup) -> None:
        """Follow a complete group."""
        known = [each for line in group.rollouts if (each := line.get("reward")) is not None]
        if known:
            self.rewards.append(fmean(known))
        self.is_flat.append(find_flaw(group, ["zero_variance"]) is not None)
        self.tokens += sum(info_of(line).output_tokens for line in group.rollouts)

    def settle(self, settled: Settled) -> None:
        """Follow a group that the trainer has used."""
        if settled.lag is not None:
            self.lags.append(settled.lag)

    def measure(self) -> dict[str, float]:
        """The figures by name. What is unknown is left out."""
        means = {"reward": self.rewards, "zero_variance_frac": self.is_flat, "staleness": self.lags}
        found = {name: fmean(values) for name, values in means.items() if values}
        return {**found, "tokens": float(self.tokens)} if self.is_flat else found

    def describe(self) -> str:
        """The figures in words; empty if there are none."""
        words = {"reward": "reward {:.3f}", "zero_variance_frac": "{:.0%} without variance"}
        words |= {"staleness": "staleness {:.2f}", "tokens": "{:,.0f} tokens"}
        return ", ".join(words[name].format(value) for name, value in self.measure().items())
