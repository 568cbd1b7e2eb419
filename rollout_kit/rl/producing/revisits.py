"""Which tasks an epoch leaves out: those whose last groups had equal rewards, and taught nothing.

A task that is too easy or too hard comes back after 1, 3, 7, … epochs, because the policy changes.
What an epoch leaves out depends on the rewards of earlier epochs alone.
"""

from collections.abc import Callable, Iterator, Sequence

from ...collecting.schedule import Later
from ...store.scope import group_of, parse_scope
from ...types import Attempt, Rollout

MOST = 5
"""A task is left out for at most 2^MOST − 1 epochs."""


class Revisits:
    """Follows the rewards of each task, epoch by epoch."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, tuple[float, float]]] = {}
        """Task → epoch → least and greatest reward."""
        self.num_left_out = 0

    def take(self, rollout: Rollout) -> None:
        """Follow a rollout."""
        reward = rollout.reward
        if reward is None:
            return
        epochs = self._seen.setdefault(rollout.key.task_id, {})
        epoch = parse_scope(rollout.key.scope).epoch or 0
        low, high = epochs.get(epoch, (reward, reward))
        epochs[epoch] = min(low, reward), max(high, reward)

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
        key = owed[0].key
        is_due = (parse_scope(key.scope).epoch or 0) >= self._find_due(key.task_id, key.scope)
        self.num_left_out += not is_due
        return is_due

    def _find_due(self, task_id: str, scope: str) -> int:
        epoch = parse_scope(scope).epoch or 0
        known = self._seen.get(task_id, {})
        return next_epoch(
            [(at, known[at][0] != known[at][1]) for at in sorted(known) if at < epoch]
        )


def next_epoch(groups: Sequence[tuple[int, bool]]) -> int:
    """The epoch from which on a task is wanted again. `groups`: the epoch of each of its groups,
    and whether its rewards differed."""
    due = streak = 0
    for epoch, is_informative in groups:
        streak = 0 if is_informative else streak + 1
        due = epoch + 2 ** min(streak, MOST)
    return due
