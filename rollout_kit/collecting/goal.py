"""A run that ends once it has enough repeats of its tasks, in place of a fixed number.

Repeats come in waves. What is asked of a task in a wave depends on its own first wave alone, or on
the interval over all tasks at the end of a wave, as `analysis.metrics.adaptive` requires. A run
that is continued finds the same decisions in its output.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from ..analysis.metrics.adaptive import MeanOverTasks, is_decided
from ..config.keys import CollectConfig, GoalConfig
from ..errors import ConfigError
from ..store.lines import Malformed
from ..store.rollouts import RolloutFile
from ..store.scope import Group, group_of
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Task, is_countable
from .agents import AgentPlan
from .schedule import Later
from .sources import TaskSource

NUM_WAVES = 4
"""Waves after the first one, at most, at whose ends a run looks at its interval."""

IN_WAVES = (
    "it goes through a file of rows in waves: give a path as input, and leave out buffer, epochs"
    " and longest_first"
)


def choose_source(
    command: CollectConfig, plans: Mapping[str, AgentPlan], given: Callable[..., TaskSource]
) -> Callable[..., TaskSource]:
    """The given kind of source, or the one of a goal; ConfigError if the command has a goal that
    does not go with the rest."""
    if command.goal is None:
        return given
    scoring = [agent for agent, plan in plans.items() if plan.verifies_groups]
    reasons = {
        IN_WAVES: given is not TaskSource,
        f"{', '.join(scoring)} scores all rollouts of a task together": bool(scoring),
        "arms have repeats of their own": bool(command.arms),
        "a shard does not see the rewards of the others": command.shard is not None,
        "verification is skipped, and rewards decide": command.skip_verification,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(f"goal: not possible here, as {reason}")
    return GoalSource


class GoalSource(TaskSource):
    """The tasks in waves of repeats, until the goal is reached."""

    def __init__(self, command: CollectConfig, *args: Any, **options: Any) -> None:
        super().__init__(command, *args, **options)
        assert command.goal
        self._goal: GoalConfig = command.goal
        self._rewards: dict[Group, dict[int, float]] = {}
        """Rewards by rollout index."""
        self._running: set[Key] = set()
        """Attempts that were handed out and have not ended."""
        self._moved = asyncio.Event()
        """Set when an attempt has ended."""
        self._enough: int | None = None
        """Rollouts of each task with which the interval was narrow enough."""

    def first(self, agent: str) -> int:
        """Rollouts that a task gets in any case."""
        number = self.wanted.repeats(agent)
        return min(number, self._goal.first or max(2, -(-number // 2)))

    def _waves(self) -> list[int]:
        """The rollouts that a task has after each wave."""
        first = max(map(self.first, self.agents), default=1)
        most = max(self.repeats, first)
        if self._goal.ci is None:
            return [first, most]
        step = max(1, -(-(most - first) // NUM_WAVES))
        return [*takewhile(lambda number: number < most, count(first, step)), most]

    async def count(self) -> None:
        self._kept = None
        for rollout in await asyncio.to_thread(self._read_stored):
            self._note(*rollout)
        self.counts = await self._count(self.reader.read())
        self._enough = self._find_enough() if self._goal.ci is not None else None
        self.counts = replace(self.counts, decided=self._count_needless())
        self._check()

    def take(self, outcome: Outcome) -> None:
        super().take(outcome)
        if isinstance(outcome, Rollout):
            self._note(outcome.key, outcome.head.get("reward"))
        self._running.discard(outcome.key)
        self._moved.set()

    def own_results(self) -> JsonObject:
        found, number = self.estimate(self._enough), self.counts.decided
        known = found is not None and math.isfinite(found.half_width)
        return {
            "goal": {
                "ci": self._goal.ci,
                "decided": self._goal.decided,
                "reached": self._enough is not None,
                "mean": found.mean if found else None,
                "half_width": found.half_width if found and known else None,
                "tasks": found.num_tasks if found else 0,
                "tasks_differing": found.num_differing if found else 0,
                "rollouts_decided": number,
            }
        }

    def estimate(self, upto: int | None = None) -> MeanOverTasks | None:
        """The mean reward over the tasks, from their first `upto` rollouts."""
        return MeanOverTasks.of(self._judge_tasks(upto))

    def _judge_tasks(self, upto: int | None) -> Iterator[tuple[Sequence[float], int | None]]:
        """What `MeanOverTasks.of` takes of each task."""
        for group, rewards in self._rewards.items():
            known = [rewards[at] for at in sorted(rewards) if upto is None or at < upto]
            if (first := self._first_rewards(group)) is None:
                yield known, None
            else:
                yield first if is_decided(first, len(first)) else known, len(first)

    def _first_rewards(self, group: Group) -> list[float] | None:
        """The rewards that may decide a task; None if nothing can, or one of them is missing."""
        rewards, first = self._rewards.get(group, {}), range(self.first(group.agent))
        if not self._goal.decided or any(at not in rewards for at in first):
            return None
        return [rewards[at] for at in first]

    def _is_decided(self, group: Group) -> bool:
        first = self._first_rewards(group)
        return first is not None and is_decided(first, len(first))

    def _is_needless(self, key: Key) -> bool:
        if self._enough is not None and key.rollout_index >= self._enough:
            return True
        is_later = key.rollout_index >= self.first(key.agent)
        return is_later and self._is_decided(group_of(key))

    def _read_stored(self) -> list[tuple[Key, Any]]:
        paths = getattr(self._journal, "paths", None)
        if paths is None or not self.done:
            return []
        stored = RolloutFile(paths.main).rollouts()
        return [(each.key, each.head.get("reward")) for each in stored if self._is_own(each.key)]

    def _is_own(self, key: Key) -> bool:
        return key in self.done and self.is_of_this_run(key)

    def _note(self, key: Key, reward: Any) -> None:
        if is_countable(reward):
            self._rewards.setdefault(group_of(key), {})[key.rollout_index] = float(reward)

    def _all(self) -> Iterator[Attempt | Later]:
        yield from map(self._hand_out, self.find_parked(self._contents.pending))
        before = 0
        for upto in self._waves():
            yield from self._wave(before, upto)
            if self._goal.ci is not None:
                yield from self._wait_until_quiet()
                if self._enough is None:
                    self._enough = self._reach(upto)
            before = upto
            self.counts = replace(self.counts, decided=self._count_needless())

    def _wave(self, before: int, upto: int) -> Iterator[Attempt | Later]:
        """What is owed of the rollouts from `before` on; last the tasks whose first rollouts are
        still running."""
        waiting: Iterable[Task | Malformed] = self._name_malformed(self.reader.read())
        while True:
            late: list[Task] = []
            self._moved.clear()  # what ends from here on is looked at again
            for task in waiting:
                if isinstance(task, Malformed):
                    continue
                if before and self._is_open(task):
                    late.append(task)
                else:
                    yield from self._hand_out_owed(task, before, upto)
            if not late:
                return
            waiting = late
            yield Later(self._moved, "the first rollouts of tasks")

    def _is_open(self, task: Task) -> bool:
        if not self._goal.decided:
            return False
        return any(
            key in self._running
            for key in self.wanted.keys(task)
            if key.rollout_index < self.first(task.agent)
        )

    def _hand_out_owed(self, task: Task, before: int, upto: int) -> Iterator[Attempt | Later]:
        for attempt in self.find_owed([task]):
            if isinstance(attempt, Later):
                yield attempt
            elif before <= attempt.key.rollout_index < upto and not self._is_needless(attempt.key):
                yield self._hand_out(attempt)

    def _hand_out(self, attempt: Attempt) -> Attempt:
        self._running.add(attempt.key)
        return attempt

    def _wait_until_quiet(self) -> Iterator[Later]:
        while self._running:
            self._moved.clear()
            yield Later(self._moved, "the end of a wave")

    def _reach(self, upto: int) -> int | None:
        """`upto` if the interval over the first so many rollouts of each task is narrow enough."""
        goal, found = self._goal.ci, self.estimate(upto)
        return upto if goal and found is not None and found.is_within(goal) else None

    def _find_enough(self) -> int | None:
        """The wave with which the rollouts on disk have reached the goal."""
        owed = (key.rollout_index for key in self._left() if not self._is_needless(key))
        complete = min(owed, default=self.repeats)
        reached = (self._reach(upto) for upto in self._waves() if upto <= complete)
        return next((upto for upto in reached if upto is not None), None)

    def _count_needless(self) -> int:
        return sum(map(self._is_needless, self._left()))

    def _left(self) -> Iterator[Key]:
        """What is planned and neither on disk nor failed for good."""
        contents, refused = self._contents, self._refused_keys()
        for task in self.reader.read():
            for key in self.wanted.keys(task) if isinstance(task, Task) else ():
                known = self._rewards.get(group_of(key), ())
                is_stored = key in contents.done or key in contents.pending or key in refused
                if not is_stored and key.rollout_index not in known:
                    yield key
