"""Which groups are settled: each slot has a rollout, or failed in this run.

Only open groups are held. A group whose rollouts were all made in this run keeps their content; of
any other it knows the sum of their digests, and they are read from the output again.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from ...store.compact import Keys
from ...store.groups.members import HeldMember, hold
from ...store.scope import Group, group_of, without_arm
from ...types import JsonObject, Key, Outcome, Rollout, Task, Unverified

SCOPE = attrgetter("scope")


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
    held: dict[Key, HeldMember] | None = field(default_factory=dict)
    """None if not all members are in memory."""
    let_go: int = 0
    """Sum of the digests of members that are not held."""
    row: JsonObject = field(default_factory=dict)
    """The row of its task."""
    began: float | None = None
    """Time of its first outcome in this run."""
    is_overdue: bool = False
    """Whether its deadline has passed."""

    @property
    def is_settled(self) -> bool:
        return self.is_planned and not self.owed and self.num_earlier == 0

    @property
    def total(self) -> int:
        """Sum of the digests of its members."""
        held = self.held or {}
        return self.let_go + sum(each.digest for each in held.values())

    def add(self, member: HeldMember) -> None:
        self.num_members += 1
        if self.held is None:
            self.let_go += member.digest
        else:
            self.held[member.key] = member

    def let_go_of_members(self) -> None:
        """Hold only the sum of their digests from now on."""
        self.let_go, self.held = self.total, None


class OpenGroups:
    """`done` are the keys that were on disk before the run. A settled group is handed to `settle`,
    once; what comes later opens it again."""

    def __init__(
        self,
        agents: Collection[str],
        done: Keys,
        settle: Callable[[Group, OpenGroup], None],
        now: Callable[[], float],
        hold: Callable[[Key, JsonObject, bytes | None], HeldMember] = hold,
    ) -> None:
        self._hold = hold
        self._agents, self._done, self._settle, self._now = agents, done, settle, now
        self._open: dict[Group, OpenGroup] = {}
        self.noted: list[tuple[Key, HeldMember | None]] = []
        """Outcomes to go through: members, and None for what failed."""
        self.planned = 0

    def __len__(self) -> int:
        return len(self._open)

    def plan(self, refused: Collection[Key], task: Task, keys: Sequence[Key]) -> None:
        """Open the groups of a task's keys; those `refused` failed permanently before."""
        if task.agent not in self._agents:
            return
        groups: dict[Group, list[Key]] = {}
        for scope, some in groupby(keys, SCOPE):
            group = Group(task.task_id, task.agent, without_arm(scope))
            groups.setdefault(group, []).extend(some)
        for group, own in groups.items():
            opened = self._group(group)
            earlier = set(self._earlier(group)) if self._done else set()
            if not opened.is_planned:
                opened.is_planned, opened.task_index = True, task.task_index
                opened.row = task.row
                opened.num_earlier += len(earlier)
                opened.is_reopened = task.first_rollout > 0
                self.planned += not opened.is_reopened
                if earlier or opened.is_reopened:
                    opened.let_go_of_members()
            again = {key for key in own if key in refused} if refused else set()
            opened.failed |= again
            opened.owed |= set(own).difference(again, earlier, opened.early)
            self._close_if_settled(group, opened)

    def note(self, outcome: Outcome) -> None:
        """Note an outcome of this run; `go_on` goes through what was noted. A rollout that was just
        written is in the processor's cache: to hold it now takes half of the time."""
        key = outcome.key
        if key.agent not in self._agents:
            return
        if isinstance(outcome, Rollout):
            self.noted.append((key, self._hold(key, outcome.line, outcome.encoded)))
        elif not isinstance(outcome, Unverified) or outcome.error is not None:
            self.noted.append((key, None))  # else its verdict is still to come

    def go_on(self) -> None:
        """Follow the outcomes that were noted: many at once take less time than each by itself."""
        if not self.noted:
            return
        noted, self.noted, now = self.noted, [], self._now()
        for key, member in noted:
            opened = self._group(group := group_of(key))
            if opened.began is None:
                opened.began = now
            opened.owed.discard(key)
            if not opened.is_planned:
                opened.early.add(key)
            if member is None:
                opened.failed.add(key)
            else:
                opened.failed.discard(key)
                opened.add(member)
            if not opened.owed:
                self._close_if_settled(group, opened)

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome at once."""
        self.note(outcome)
        self.go_on()

    def add_earlier(self, rollout: Rollout) -> None:
        """Follow a rollout that was on disk before the run."""
        key = rollout.key
        if key.agent not in self._agents:
            return
        opened = self._group(group := group_of(key))
        opened.num_earlier -= 1  # below 0 until the group is planned
        opened.let_go_of_members()
        opened.add(self._hold(key, rollout.line, rollout.encoded))
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
