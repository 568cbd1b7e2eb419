"""Which groups are settled: each slot has a rollout, or failed in this run.

Only open groups are held. A group whose rollouts were all made in this run keeps their content; of
any other it knows the sum of their digests, and they are read from the output again.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ...store.compact import Keys
from ...store.groups.members import HeldMember, hold, task_of
from ...store.groups.scope import Group, group_of
from ...types import JsonObject, Key, Outcome, Rollout, Task, Unverified


@dataclass(slots=True)
class OpenGroup:
    """A group in progress. It is settled once it is planned, nothing is `owed`, and its rollouts of
    earlier runs were read."""

    task_index: int = 0
    is_planned: bool = False
    owed: set[Key] = field(default_factory=set)
    failed: set[Key] = field(default_factory=set)
    early: set[Key] = field(default_factory=set)
    """Keys that ended before the group was planned."""
    is_reopened: bool = False
    """Whether it was settled before, and a further row of the same task came."""
    num_earlier: int = 0
    """Rollouts on disk that are still to be read."""
    num_members: int = 0
    total: int = 0
    """Sum of the digests of its members."""
    held: dict[Key, HeldMember] | None = field(default_factory=dict)
    """None if not all members are in memory."""
    task: JsonObject | None = None
    began: float | None = None
    """Time of its first outcome in this run."""
    is_overdue: bool = False
    """Whether its deadline has passed."""

    @property
    def is_settled(self) -> bool:
        return self.is_planned and not self.owed and self.num_earlier == 0

    def add(self, key: Key, held: HeldMember) -> None:
        self.num_members += 1
        self.total += held.digest
        if self.held is not None:
            self.held[key] = held


class OpenGroups:
    """`done` are the keys that were on disk before the run. A settled group is handed to `settle`,
    once; what comes later opens it again."""

    def __init__(
        self,
        agents: Collection[str],
        done: Keys,
        settle: Callable[[Group, OpenGroup], None],
        now: Callable[[], float],
        hold: Callable[[Key, JsonObject], HeldMember] = hold,
    ) -> None:
        self._hold = hold
        self._agents, self._done, self._settle, self._now = agents, done, settle, now
        self._open: dict[Group, OpenGroup] = {}
        self._fresh: dict[Key, HeldMember] = {}
        """Members that were held, and whose outcome is still to be observed."""
        self.planned = 0

    def __len__(self) -> int:
        return len(self._open)

    def plan(self, refused: Collection[Key], task: Task, keys: Sequence[Key]) -> None:
        """Open the groups of a task's keys; those `refused` failed permanently before."""
        if task.agent not in self._agents:
            return
        groups: dict[Group, list[Key]] = {}
        for key in keys:
            groups.setdefault(group_of(key), []).append(key)
        for group, own in groups.items():
            opened = self._group(group)
            earlier = set(self._earlier(group)) if self._done else set()
            if not opened.is_planned:
                opened.is_planned, opened.task_index = True, task.task_index
                opened.num_earlier += len(earlier)
                opened.is_reopened = task.first_rollout > 0
                self.planned += not opened.is_reopened
                if earlier or opened.is_reopened:
                    opened.held = None
            for key in own:
                if key in refused:
                    opened.failed.add(key)
                elif key not in earlier and key not in opened.early:
                    opened.owed.add(key)
            self._close_if_settled(group, opened)

    def hold(self, outcome: Outcome) -> None:
        """Hold a rollout that was just written: while it is in the processor's cache, that takes a
        half of the time. `take` follows."""
        if isinstance(outcome, Rollout) and (key := outcome.key).agent in self._agents:
            self._fresh[key] = self._hold(key, outcome.line)

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome of this run."""
        key = outcome.key
        if key.agent not in self._agents:
            return
        if isinstance(outcome, Unverified) and outcome.error is None:
            return  # its verdict is still to come
        opened = self._group(group := group_of(key))
        if opened.began is None:
            opened.began = self._now()
        opened.owed.discard(key)
        if not opened.is_planned:
            opened.early.add(key)
        if isinstance(outcome, Rollout):
            opened.failed.discard(key)
            held = self._fresh.pop(key, None)
            opened.add(key, self._hold(key, outcome.line) if held is None else held)
            if opened.task is None and opened.held is not None:
                opened.task = task_of(outcome.line)
        else:
            opened.failed.add(key)
        self._close_if_settled(group, opened)

    def add_earlier(self, rollout: Rollout) -> None:
        """Follow a rollout that was on disk before the run."""
        key = rollout.key
        if key.agent not in self._agents:
            return
        opened = self._group(group := group_of(key))
        opened.num_earlier -= 1  # below 0 until the group is planned
        opened.held = None
        opened.add(key, self._hold(key, rollout.line))
        self._close_if_settled(group, opened)

    def overdue(self, deadline_s: float) -> Iterator[tuple[Group, OpenGroup]]:
        """The groups whose deadline has passed since this was last asked."""
        now = self._now()
        for group, opened in self._open.items():
            is_begun = opened.began is not None and now - opened.began >= deadline_s
            if is_begun and not opened.is_overdue:
                opened.is_overdue = True
                yield group, opened

    def _group(self, group: Group) -> OpenGroup:
        opened = self._open.get(group)
        if opened is None:
            opened = self._open[group] = OpenGroup()
        return opened

    def _earlier(self, group: Group) -> Iterator[Key]:
        return (key for key in self._done.of_task(*group[:2]) if group_of(key) == group)

    def _close_if_settled(self, group: Group, opened: OpenGroup) -> None:
        if opened.is_settled:
            del self._open[group]
            self._settle(group, opened)
