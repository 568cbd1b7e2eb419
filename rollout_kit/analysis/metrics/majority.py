"""maj@k: the reward of the answer that most of k rollouts of a task give.

Rollouts without an answer do not vote. If several answers are the most common, each of them is
chosen equally often. A vote without any answer earns 0. For k below the number of rollouts, maj@k
is the mean over all choices of k of them; over DRAWS random choices if there are more. The order of
the rollouts does not matter, nor what the answers say: tasks that are alike are computed once.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

from ...types import JsonObject

DRAWS = 256

MAX_TASKS = 10_000
"""Votes are kept for up to this many tasks."""

NUM_ALIKE = 10_000
"""Kinds of tasks whose maj@k is remembered."""


class Vote(NamedTuple):
    """One rollout: its answer, or None, and its reward."""

    answer: str | None
    reward: float


AnyVote = tuple[str | None, float]
"""The answer and the reward of a `Vote`; a plain tuple takes less time to make."""


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
    return _maj_alike(k, _kind_of(Counter(votes)))


Kind = tuple[int, tuple[tuple[float, ...], ...]]
"""Tasks that are alike: the rollouts without an answer, and the rewards of each answer."""


def _kind_of(votes: Mapping[AnyVote, int]) -> Kind:
    if len(votes) == 1:  # as of most tasks
        (((answer, reward), number),) = votes.items()
        return (number, ()) if answer is None else (0, ((reward,) * number,))
    rewards: dict[str | None, list[float]] = {}
    for (answer, reward), number in votes.items():
        rewards.setdefault(answer, []).extend([reward] * number)
    none = len(rewards.pop(None, ()))
    return none, tuple(sorted(tuple(sorted(given)) for given in rewards.values()))


def _size_of(kind: Kind) -> int:
    return kind[0] + sum(map(len, kind[1]))


@lru_cache(maxsize=NUM_ALIKE)
def _maj_alike(k: int, kind: Kind) -> float:
    """maj@k of tasks of this kind."""
    none, rewards = kind
    votes = [Vote(None, 0.0)] * none
    votes += [Vote(str(number), one) for number, given in enumerate(rewards) for one in given]
    chosen = list(_choices(k, votes))
    return math.fsum(map(vote, chosen)) / len(chosen)


def _choices(k: int, votes: Sequence[Vote]) -> Iterator[Sequence[Vote]]:
    if math.comb(len(votes), k) <= DRAWS:
        yield from combinations(votes, k)
        return
    random = Random(k)
    for _ in range(DRAWS):
        yield random.sample(votes, k)


@dataclass(slots=True)
class Votes:
    """The votes of each task whose verifier sets `extracted_answer`: how often each was given."""

    tasks: dict[tuple[str, str], dict[AnyVote, int]] = field(default_factory=dict)
    given: int = 0
    """Verified rollouts with the field, null or not."""
    missing: int = 0
    """Those without an answer."""

    def add(self, task: tuple[str, str], answer: Any, reward: float) -> None:
        """Count a rollout of a task, which is (agent, task id)."""
        self.given += 1
        self.missing += answer is None
        if len(self.tasks) <= MAX_TASKS:
            text = None if answer is None else str(answer)
            votes = self.tasks.setdefault(task, {})
            votes[text, reward] = votes.get((text, reward), 0) + 1

    def merge(self, other: "Votes") -> None:
        self.given += other.given
        self.missing += other.missing
        for task, votes in other.tasks.items():
            known = self.tasks.setdefault(task, {})
            for each, number in votes.items():
                known[each] = known.get(each, 0) + number

    def maj_at_k(self, ks: Iterable[str]) -> dict[str, tuple[float, int]]:
        """maj@k over the tasks with at least k rollouts, and their number; empty without answers,
        or with too many tasks."""
        if self.given == self.missing or len(self.tasks) > MAX_TASKS:
            return {}
        alike, found = Counter(map(_kind_of, self.tasks.values())), {}
        for k in ks:
            kinds = Counter({kind: n for kind, n in alike.items() if _size_of(kind) >= int(k)})
            if kinds:
                whole = math.fsum(n * _maj_alike(int(k), kind) for kind, n in kinds.items())
                found[k] = whole / kinds.total(), kinds.total()
        return found

    def figures(self, ks: Iterable[str]) -> JsonObject:
        """maj@k with the number of tasks behind each, for the metrics file; empty if unknown."""
        if not (found := self.maj_at_k(ks)):
            return {}
        return {
            "maj_at_k": {k: value for k, (value, _) in found.items()},
            "maj_at_k_tasks": {k: number for k, (_, number) in found.items()},
        }

    def no_answer(self) -> float | None:
        """The share of rollouts without an answer."""
        return self.missing / self.given if self.given else None
