"""maj@k: the reward of the answer that most of k rollouts of a task give.

Rollouts without an answer do not vote. If several answers are the most common, each of them is
chosen equally often. A vote without any answer earns 0. For k below the number of rollouts, maj@k
is the mean over all choices of k of them; over DRAWS random choices if there are more.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

DRAWS = 256


class Vote(NamedTuple):
    """One rollout: its answer, or None, and its reward."""

    answer: str | None
    reward: float


def vote(votes: Iterable[Vote]) -> float:
    """The expected reward of the most common answer."""
    rewards: dict[str, list[float]] = {}
    for each in votes:
        if each.answer is not None:
            rewards.setdefault(each.answer, []).append(each.reward)
    if not rewards:
        return 0.0
    most = max(map(len, rewards.values()))
    chosen = [sum(given) / most for given in rewards.values() if len(given) == most]
    return sum(chosen) / len(chosen)


def maj_at(k: int, votes: Sequence[Vote]) -> float:
    """maj@k of one task with at least k rollouts."""
    chosen = list(_choices(k, votes))
    return math.fsum(map(vote, chosen)) / len(chosen)


def _choices(k: int, votes: Sequence[Vote]) -> Iterator[Sequence[Vote]]:
    if math.comb(len(votes), k) <= DRAWS:
        yield from combinations(votes, k)
        return
    random = Random(k)
    for _ in range(DRAWS):
        yield random.sample(votes, k)
