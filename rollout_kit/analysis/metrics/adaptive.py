"""Estimates of mean rewards where the number of rollouts of a task depends on their rewards.

A task is decided if its first `first` rewards are all equal; it then gets no more rollouts. The
mean of its rewards would be biased: tasks stop early where chance was with them, or against them.
The estimator here is not. Its proof: the reward of the first rollout alone, X₁, is an unbiased
estimate of the task's mean, whatever happens later. Its expectation given all rewards without
their order (Rao and Blackwell) is unbiased too, and more precise. Given the rewards, every order in
which the task would have gone on is equally likely, so this expectation is the mean of X₁ over
those orders: all orders, less those whose first rewards are all equal. In the same way X₁·X₂
estimates the square of the task's mean, and the estimate squared less that is an unbiased estimate
of the variance. For rewards of 0 and 1 this is the estimator of Girshick, Mosteller and Savage
(1946), which is the only unbiased one.

All tasks may also stop at once, after a wave that gave each undecided one the same number of
rollouts, because their common interval is narrow enough. No task has much influence on that, so
the estimates stay good (Chow and Robbins 1965); a simulation in the tests shows how good.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

from .intervals import Z_95

ENOUGH = 20
"""So many tasks must have rewards that differ before a narrow interval ends a run: a few tasks
whose rewards happen to be equal have no width at all."""


def is_decided(rewards: Sequence[float], first: int) -> bool:
    """Whether a task gets no more rollouts; `rewards` are in the order of the rollouts."""
    return len(rewards) >= first and len({*rewards[:first]}) == 1


def estimate_task(rewards: Sequence[float], first: int | None = None) -> tuple[float, float]:
    """Unbiased estimates of a task's mean reward and of the first estimate's variance.

    `first` is the number of rewards after which the task would have stopped if all were equal;
    None if nothing could stop it. Without two rewards the variance is NaN.

    Example:

        mean, variance = estimate_task([1.0, 0.0, 1.0, 1.0], first=2)
    """
    number, total = len(rewards), math.fsum(rewards)
    if number == 1:
        return total, math.nan
    mean = total / number
    square = (total * total - math.fsum(each * each for each in rewards)) / (number * (number - 1))
    if first is not None and number > first:
        # the share of the orders in which the first rewards all have this value
        shares = {value: comb(of, first) for value, of in Counter(rewards).items() if of >= first}
        orders = comb(number, first)
        left = (orders - sum(shares.values())) / orders
        mean -= math.fsum(value * share for value, share in shares.items()) / orders
        square -= math.fsum(value * value * share for value, share in shares.items()) / orders
        mean, square = mean / left, square / left
    return mean, mean * mean - square


@dataclass(frozen=True, slots=True)
class MeanOverTasks:
    """The mean reward over tasks, each as it is: how it would be with endless repeats."""

    mean: float
    half_width: float
    """Of the 95 % interval; infinite while it is unknown."""
    num_tasks: int
    num_differing: int
    """Tasks whose rewards differ."""

    def is_within(self, half_width: float) -> bool:
        return self.half_width <= half_width and self.num_differing >= ENOUGH

    @classmethod
    def of(cls, tasks: Iterable[tuple[Sequence[float], int | None]]) -> "MeanOverTasks | None":
        """That of tasks, each with what `estimate_task` takes; None without a reward."""
        means: list[float] = []
        spread, differing = 0.0, 0
        for rewards, first in tasks:
            if rewards:
                mean, variance = estimate_task(rewards, first)
                means.append(mean)
                spread += variance
                differing += len({*rewards}) > 1
        if not means:
            return None
        half = math.inf if math.isnan(spread) else Z_95 * math.sqrt(max(spread, 0.0)) / len(means)
        return cls(math.fsum(means) / len(means), half, len(means), differing)
