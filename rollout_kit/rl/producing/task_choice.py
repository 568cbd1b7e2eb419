"""Which tasks an epoch leaves out, as a policy decides. A group that was begun is always made."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...collecting.schedule import Later
from ...store.scope import group_of, parse_scope
from ...types import Attempt, Rollout
from ..task_policies import UNLOCKED_BY, AnyPolicy, Curriculum, KnownGroup


@dataclass(slots=True)
class _Rewards:
    """Those of one task in one epoch."""

    low: float = math.inf
    high: float = -math.inf
    number: int = 0
    successes: float = 0.0

    def add(self, reward: float) -> None:
        self.low, self.high = min(self.low, reward), max(self.high, reward)
        self.number += 1
        self.successes += min(1.0, max(0.0, reward))


class TaskChoice:
    """Follows the rewards of each task, epoch by epoch."""

    def __init__(self, policy: AnyPolicy) -> None:
        self.policy = policy
        self._seen: dict[str, dict[int, _Rewards]] = {}
        """Task → epoch → rewards."""
        self._of_level: dict[float, dict[int, list[_Rewards]]] = {}
        """Number in the row → epoch → rewards of the groups."""
        self._top: tuple[int, float] = -1, math.inf
        self.num_left_out = 0

    def take(self, rollout: Rollout) -> None:
        """Follow a rollout."""
        if rollout.reward is None:
            return
        epochs = self._seen.setdefault(rollout.key.task_id, {})
        epoch = parse_scope(rollout.key.scope).epoch or 0
        if (rewards := epochs.get(epoch)) is None:
            rewards = epochs[epoch] = _Rewards()
            level = self._level_of(rollout.line)
            if level is not None:
                self._of_level.setdefault(level, {}).setdefault(epoch, []).append(rewards)
        rewards.add(rollout.reward)

    def leave_out(
        self, attempts: Iterator[Attempt | Later], num_members: Callable[[Attempt], int]
    ) -> Iterator[Attempt | Later]:
        """The attempts without those of groups that are not wanted. `num_members`: how many
        rollouts the group of an attempt has."""
        owed: list[Attempt] = []

        def empty() -> Iterator[Attempt]:
            if owed and self.wants(owed, num_members(owed[0])):
                yield from owed
            owed.clear()

        for attempt in attempts:
            if isinstance(attempt, Later):
                yield from empty()
                yield attempt
                continue
            if owed and group_of(owed[0].key) != group_of(attempt.key):
                yield from empty()
            owed.append(attempt)
        yield from empty()

    def wants(self, owed: Sequence[Attempt], num_members: int) -> bool:
        """Whether a group is made in the epoch of its attempts. One that is begun always is."""
        if len(owed) < num_members:
            return True
        key, row = owed[0].key, owed[0].task.row
        epoch = parse_scope(key.scope).epoch or 0
        wanted = self._is_unlocked(row, epoch) and self.policy.wants(
            key.task_id, epoch, self._groups_of(key.task_id, epoch)
        )
        self.num_left_out += not wanted
        return wanted

    def rate_of(self, above: float, most: float, before: int) -> tuple[int, float]:
        """Groups of a range of numbers, and the share of successes in the last of them, before an
        epoch."""
        groups = [
            (at, each)
            for level, epochs in self._of_level.items()
            if above < level <= most
            for at, found in epochs.items()
            if at < before
            for each in found
        ]
        groups.sort(key=lambda each: each[0])
        last = [each for _, each in groups[-UNLOCKED_BY:]]
        number = sum(each.number for each in last)
        return len(groups), sum(each.successes for each in last) / number if number else 0.0

    def _is_unlocked(self, row: dict[str, object], epoch: int) -> bool:
        if not isinstance(self.policy, Curriculum):
            return True
        level = self._level_of(row)
        if self._top[0] != epoch:
            self._top = epoch, self.policy.find_top(self, epoch)
        return level is None or level <= self._top[1]

    def _level_of(self, row: dict[str, object]) -> float | None:
        if not isinstance(self.policy, Curriculum):
            return None
        level = row.get(self.policy.by)
        return float(level) if isinstance(level, int | float) else None

    def _groups_of(self, task: str, before: int) -> list[KnownGroup]:
        known = self._seen.get(task, {})
        return [
            KnownGroup(at, each.number, each.successes, each.low != each.high)
            for at, each in sorted(known.items())
            if at < before
        ]
