"""Advantages, and the figures of a group of rollouts, from their rewards alone.

A reward of None means that a rollout could not be scored: it counts in no figure, and its advantage
is 0, so that it teaches a trainer nothing.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Method = Literal["grpo", "dr_grpo", "rloo"]

EPSILON = 1e-8
"""Added to GRPO's divisor."""


class GroupFigures(NamedTuple):
    """The scored members of a group: `n` of them. `std` is the population's, as in NumPy; mean and
    `pass_rate` are None without members. `zero_variance`: all rewards are equal."""

    n: int
    mean: float | None
    std: float | None
    pass_rate: float | None
    zero_variance: bool

    @classmethod
    def of(cls, rewards: Sequence[float | None], threshold: float = 1.0) -> "GroupFigures":
        """A reward of at least `threshold` is a pass."""
        scored = [reward for reward in rewards if reward is not None]
        if not (n := len(scored)):
            return cls(0, None, None, None, False)
        passed = sum(reward >= threshold for reward in scored) / n
        if min(scored) == max(scored):
            return cls(n, scored[0], 0.0, passed, True)
        mean = sum(reward / n for reward in scored)
        std = math.hypot(*(reward - mean for reward in scored)) / math.sqrt(n)
        return cls(n, mean, std, passed, False)

    def advantage(self, reward: float | None, method: Method) -> float:
        """The advantage of a member with this reward.

        `grpo`: the distance to the mean in standard deviations. `dr_grpo`: the distance. `rloo`:
        the distance to the mean of the other members; 0 if there are none.
        """
        if reward is None or self.mean is None or self.std is None:
            return 0.0
        apart = reward - self.mean
        if method == "grpo":
            return apart / (self.std + EPSILON)
        if method == "rloo":
            return apart * self.n / (self.n - 1) if self.n > 1 else 0.0
        return apart

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def advantages(rewards: Sequence[float | None], method: Method = "grpo") -> list[float]:
    """The advantage of each member of a group."""
    group = GroupFigures.of(rewards)
    return [group.advantage(reward, method) for reward in rewards]
