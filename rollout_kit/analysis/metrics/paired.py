"""Two sets of rollouts of the same tasks, compared task by task.

The unit is the task: rollouts of one task are not independent, so their mean counts once, and the
interval is that of the tasks' differences (Student's t, clustered by task). McNemar's exact test
needs one rollout of each task on both sides, and rewards of 0 and 1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...types import Key
from .intervals import wilson
from .majority import Vote, maj_at
from .student import CONFIDENCE, mcnemar, t_quantile, t_tails

ALIKE = 1e-9
"""A standard error below this share of the mean comes from rounding."""

SEEN_BELOW = 0.05
"""A p-value below this counts as a difference that can be seen."""


@dataclass(slots=True)
class Side:
    """The rollouts of one file: task → its votes. The agent may be a part of a task's name, as in
    `agent\\0task`."""

    name: str
    tasks: dict[str, list[Vote]] = field(default_factory=dict)
    num_unverified: int = 0

    def add(self, task: str, reward: float | None, answer: str | None) -> None:
        if reward is None:
            self.num_unverified += 1
        else:
            self.tasks.setdefault(task, []).append(Vote(answer, reward))

    def drop_agents(self) -> None:
        self.tasks = {key.partition("\0")[2]: votes for key, votes in self.tasks.items()}

    @property
    def num_rollouts(self) -> int:
        return sum(map(len, self.tasks.values()))

    @property
    def mean(self) -> float:
        """Mean reward: each task counts once."""
        means = self.task_means()
        return math.fsum(means.values()) / len(means) if means else math.nan

    def task_means(self) -> dict[str, float]:
        return {
            task: math.fsum(vote.reward for vote in votes) / len(votes)
            for task, votes in self.tasks.items()
        }

    def pass_at_k(self, threshold: float) -> dict[str, float]:
        """Unbiased pass@k, for powers of two that every task has rollouts for."""
        each = self.pass_of_tasks(threshold)
        return {k: math.fsum(values) / len(values) for k, values in each.items()}

    def pass_of_tasks(self, threshold: float) -> dict[str, list[float]]:
        """The same for each task: k → one share a task."""
        return {
            str(k): [_pass_at(k, votes, threshold) for votes in self.tasks.values()]
            for k in self._list_ks()
        }

    def maj_at_k(self) -> dict[str, float]:
        """maj@k; empty if no rollout has an answer."""
        is_answered = any(
            vote.answer is not None for votes in self.tasks.values() for vote in votes
        )
        return self._at_k(maj_at) if is_answered else {}

    def _at_k(self, of_task: Any) -> dict[str, float]:
        return {
            str(k): math.fsum(of_task(k, votes) for votes in self.tasks.values()) / len(self.tasks)
            for k in self._list_ks()
        }

    def _list_ks(self) -> list[int]:
        """Powers of two, and the most rollouts that every task has."""
        least = min(map(len, self.tasks.values()), default=0)
        ks = {1 << bit for bit in range(least.bit_length()) if 1 << bit <= least} | {least}
        return sorted(ks - {0})


@dataclass(frozen=True, slots=True)
class Sides:
    """The rollouts of one file: by the rewards that they were given one by one, and by those that
    the verification of their groups gave."""

    own: Side
    group: Side

    @classmethod
    def create(cls, name: str) -> "Sides":
        return cls(Side(name), Side(name))

    def __iter__(self) -> Iterator[Side]:
        return iter((self.own, self.group))

    def add(
        self, key: Key, reward: float | None, group_reward: float | None, answer: object
    ) -> None:
        """Count a rollout. One that only its group scores is not unverified."""
        task = task_name(key)
        text = None if answer is None else str(answer)
        if reward is not None or group_reward is None:
            self.own.add(task, reward, text)
        if group_reward is not None:
            self.group.add(task, group_reward, text)

    def drop_agents(self) -> None:
        """Name tasks without their agents, to compare them across agents."""
        for side in self:
            side.drop_agents()


def task_name(key: Key) -> str:
    """The name of a rollout's task in a `Side`."""
    return f"{key.agent}\0{key.task_id}"


def _pass_at(k: int, votes: Sequence[Vote], threshold: float) -> float:
    failed, number = sum(vote.reward < threshold for vote in votes), len(votes)
    return 1 - math.comb(failed, k) / math.comb(number, k)


@dataclass(frozen=True, slots=True)
class Paired:
    """`difference` is the second side's mean less the first's, over the tasks that both have."""

    num_tasks: int
    means: tuple[float, float]
    difference: float
    interval: tuple[float, float] | None
    """None for fewer than two tasks, and where all tasks differ alike."""
    p: float | None
    test: str
    wins: int
    losses: int
    ties: int
    only_first: int
    only_second: int
    right: tuple[int, int] | None
    """Tasks solved by each side, if McNemar's test applies."""

    @property
    def is_seen(self) -> bool:
        return self.p is not None and self.p < SEEN_BELOW


def compare(first: Side, second: Side) -> Paired:
    """Compare two sides over their common tasks; ValueError if they have none."""
    ones, others = first.task_means(), second.task_means()
    both = [task for task in ones if task in others]
    if not both:
        raise ValueError("they have no verified task in common")
    changes = [others[task] - ones[task] for task in both]
    mean = math.fsum(changes) / len(both)
    wins, losses = sum(each > 0 for each in changes), sum(each < 0 for each in changes)
    interval, p = _student(changes, mean)
    test, right = "paired t-test over tasks", None
    if _is_binary(first, both) and _is_binary(second, both):
        test, p = "McNemar's exact test", mcnemar(wins, losses)
        right = (round(sum(ones[task] for task in both)), round(sum(others[t] for t in both)))
    elif interval is None and len(both) > 1:
        test, p = "exact sign test over tasks", mcnemar(wins, losses)
    return Paired(
        num_tasks=len(both),
        means=(_mean_of(ones, both), _mean_of(others, both)),
        difference=mean,
        interval=interval,
        p=p,
        test=test,
        wins=wins,
        losses=losses,
        ties=len(both) - wins - losses,
        only_first=len(ones) - len(both),
        only_second=len(others) - len(both),
        right=right,
    )


def correct_holm(ps: Sequence[float | None]) -> list[float | None]:
    """The p-values, corrected for as many comparisons by Holm's step-down method (1979); None
    stays, and is none of the comparisons."""
    known = sorted((p, at) for at, p in enumerate(ps) if p is not None)
    found: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, at) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        found[at] = largest
    return found


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean of independent values: Student's, and Wilson's where all are alike
    and from 0 to 1. None for a single value."""
    mean = math.fsum(values) / len(values)
    interval, _ = _student(values, mean)
    is_share = all(0 <= value <= 1 for value in values)
    alike = interval is None or interval[0] == interval[1]
    return wilson(mean, len(values)) if alike and is_share and len(values) > 1 else interval


def _student(changes: Sequence[float], mean: float) -> tuple[tuple[float, float] | None, Any]:
    """Interval and p-value of a mean of independent changes. None for a single one, and where all
    are alike: the t-test would be certain after two tasks."""
    number = len(changes)
    if number < 2:
        return None, None
    spread = math.fsum((each - mean) ** 2 for each in changes) / (number - 1)
    error = math.sqrt(spread / number)
    if error <= ALIKE * abs(mean):
        return (None, None) if mean else ((0.0, 0.0), 1.0)
    half = t_quantile(CONFIDENCE, number - 1) * error
    return (mean - half, mean + half), t_tails(mean / error, number - 1)


def _is_binary(side: Side, tasks: Sequence[str]) -> bool:
    """Whether each task has one rollout, with reward 0 or 1."""
    votes = (side.tasks[task] for task in tasks)
    return all(len(each) == 1 and each[0].reward in (0, 1) for each in votes)


def _mean_of(means: Mapping[str, float], tasks: Sequence[str]) -> float:
    return math.fsum(means[task] for task in tasks) / len(tasks)
