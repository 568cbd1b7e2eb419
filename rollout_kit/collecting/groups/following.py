"""Follows the groups of a run, once, and hands each to its consumers when it is settled.

A group is settled when it is planned, each of its slots has a rollout or failed in this run, and
its rollouts of earlier runs are known. Only open groups are held. A group whose rollouts were all
made in this run keeps their content. Of any other it knows the sum of their digests, and its
members are read from the output if a consumer needs them.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from ...errors import OutputError
from ...reading import line_at
from ...store.groups.members import HeldLine, HeldMember, hold, task_of
from ...store.journal import Journal
from ...store.lines import find_encoded
from ...store.rollouts import RolloutFile
from ...store.scope import Group, group_of
from ...store.tasks import BREATH
from ...time_limit import running_loop
from ...types import JsonObject, Key, Outcome, Rollout, StoredTurn, Task, Unverified
from ..plan import Collection as Work

log = logging.getLogger(__name__)

GATHER_S = 0.05
"""Time in which outcomes of scored groups are gathered. Going through them one after the other, and
asking about the groups that they settle, takes two thirds of the CPU that it takes between the
steps of other work."""

LOST = "its rollouts are not in the output any more"
"""Why a group is left out whose members were to be read from the output."""


@dataclass(slots=True)
class FollowedGroup:
    """A group in progress, and what consumers get once it is settled."""

    group: Group
    task_index: int = 0
    row: JsonObject = field(default_factory=dict)
    """The row of its task, as long as its members are held."""
    is_planned: bool = False
    owed: set[Key] = field(default_factory=set)
    failed: set[Key] = field(default_factory=set)
    early: set[Key] = field(default_factory=set)
    """Keys that ended before the group was planned."""
    num_earlier: int = 0
    """Rollouts on disk that are still to be read; below 0 until the group is planned."""
    num_members: int = 0
    members: dict[Key, HeldMember] | None = field(default_factory=dict)
    """None if not all of them are in memory."""
    let_go: int = 0
    """Sum of the digests of members that are not in memory."""
    is_reopened: bool = False
    """Whether it was settled before, and a further row of the same task came. `num_members` counts
    only those since."""
    began: float = math.inf
    """Time of its first outcome in this run."""
    is_overdue: bool = False
    """Whether it was handed out at its deadline."""
    is_final: bool = True
    """False if it is handed out at its deadline, and members may still come."""
    left_out: str = ""
    """Why it does not count: `incomplete`, `dropped`, …"""
    score: JsonObject | None = None
    """The line of its score, from the consumer that scores groups."""

    @property
    def slots(self) -> list[HeldMember | None]:
        """Its members in order, None for those that failed."""
        held = self.members or {}
        return [held.get(key) for key in sorted({*held, *self.failed})]

    @property
    def total(self) -> int:
        """Sum of the digests of its members."""
        return self.let_go + sum(each.digest for each in (self.members or {}).values())

    @property
    def is_settled(self) -> bool:
        return self.is_planned and not self.owed and self.num_earlier == 0

    def add(self, member: HeldMember) -> None:
        self.num_members += 1
        if self.members is None:
            self.let_go += member.digest
        else:
            self.members[member.key] = member

    def let_go_of_members(self) -> None:
        """Hold only the sum of their digests from now on."""
        self.let_go, self.members, self.row = self.total, None, {}


class GroupConsumer(Protocol):
    """Uses the settled groups of a run. Consumers get each group in turn."""

    def take(self, settled: FollowedGroup, hand_on: Callable[[], bool]) -> bool:
        """Use a group and hand it on to the next consumer, at once or later. False, before anything
        was done with it, if either needs its members or has no room: then it comes again, read from
        the output."""
        ...

    def has_place(self, group: Group) -> bool:
        """Whether it holds a place for a group, which is then read before those without one."""
        ...

    async def has_room(self, group: Group) -> bool:
        """Wait for room for a group that is read from the output. False if there is none and the
        run stops, or groups with a place are to be read first."""
        ...


class GroupFollower:
    """The sink of a run's outcomes. `fail` receives an error that ends the run.

    Without a consumer it does nothing. What comes after a group was settled opens it again.
    """

    def __init__(self, collection: Work, fail: Callable[[OutputError], None]) -> None:
        self._journal, self._source, self._fail = collection.journal, collection.source, fail
        self._policy, self._done = collection.command, collection.journal.contents.done
        self._consumers: list[GroupConsumer] = []
        self._agents = set[str]()
        self._hashed = set[str]()
        """Agents whose members are held as a verifier sees them."""
        self._with_lines = self._with_places = False
        self._open: dict[Group, FollowedGroup] = {}
        self.noted: list[tuple[Key, HeldMember | None]] = []
        """Outcomes to go through: members, and None for what failed."""
        self._needed: dict[Group, FollowedGroup] = {}
        """Settled groups that are to be read from the output."""
        self._reading = asyncio.Lock()
        self.planned = Counter[str]()
        """Agent → groups."""
        self.is_stopped = False

    def add(
        self,
        consumer: GroupConsumer,
        agents: Collection[str],
        *,
        hashed: bool = False,
        with_lines: bool = False,
        with_places: bool = False,
    ) -> None:
        """Hand the groups of these agents to one more consumer, after the others. Called before the
        run begins. Members have their parts of a request and digests (`hashed`), their whole lines,
        or the places of these in the output, if a consumer needs them."""
        if not self._consumers:
            self._source.follow(self.plan)
        self._consumers.append(consumer)
        self._agents |= set(agents)
        self._hashed |= set(agents if hashed else ())
        self._with_lines |= with_lines
        self._with_places |= with_places

    def plan(self, refused: Collection[Key], task: Task, keys: Sequence[Key]) -> None:
        """Open the groups of a task's keys; those `refused` failed permanently before."""
        if task.agent not in self._agents:
            return
        groups: dict[Group, set[Key]] = {}
        for key in keys:
            groups.setdefault(group_of(key), set()).add(key)
        done = list(self._done.of_task(task.task_id, task.agent)) if self._done else ()
        for group, own in groups.items():
            opened = self._group(group)
            earlier = {key for key in done if group_of(key) == group}
            if not opened.is_planned:
                opened.is_planned, opened.task_index = True, task.task_index
                opened.is_reopened = task.first_rollout > 0
                if not opened.is_reopened:  # else they were read before it was settled
                    opened.num_earlier += len(earlier)
                    self.planned[task.agent] += 1
                if earlier or opened.is_reopened:
                    opened.let_go_of_members()
                elif opened.members is not None:
                    opened.row = task.row
            opened.failed |= (again := {key for key in own if key in refused})
            opened.owed |= own.difference(again, earlier, opened.early)
            self._close_if_settled(group, opened)

    def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Write outcomes, and follow them: those of scored groups with others, as many at once take
        less time. A rollout that was just written is in the processor's cache: to hold it now takes
        half of the time."""
        kept, is_waiting = self._journal.append_all(outcomes), bool(self.noted)
        if self._consumers:
            for outcome in kept:
                self._note(outcome)
        if self.noted and not self._hashed:
            self.go_on()
        elif self.noted and not is_waiting:
            running_loop().call_later(GATHER_S, self.go_on)
        return kept

    def append_turn(self, turn: StoredTurn) -> None:
        self._journal.append_turn(turn)

    def add_earlier(self, rollout: Rollout) -> None:
        """Follow a rollout that was on disk before the run."""
        key = rollout.key
        if key.agent not in self._agents:
            return
        opened = self._group(group := group_of(key))
        opened.num_earlier -= 1
        opened.let_go_of_members()
        opened.add(self._hold(key, rollout.line, find_encoded(rollout)))
        self._close_if_settled(group, opened)

    def go_on(self) -> None:
        """Follow the outcomes that were noted."""
        noted, self.noted, now = self.noted, [], running_loop().time()
        try:
            for key, member in noted:
                self._follow(key, member, now)
        except Exception as bug:  # a callback of the loop has nobody else to tell
            log.exception("an unexpected error while groups were followed")
            self._fail(OutputError(f"the groups cannot be followed: {type(bug).__name__}: {bug}"))

    async def watch(self) -> None:
        """Hand out groups whose deadline has passed as they are."""
        policy = self._policy
        while (deadline_s := policy.group_deadline_s) is not None:
            await asyncio.sleep(deadline_s / 8)
            self.go_on()
            for opened in self._open.values():
                if opened.is_overdue or not self._is_late(opened):
                    continue
                is_enough = opened.num_members >= policy.min_members
                if policy.incomplete_groups == "partial" and is_enough and opened.members:
                    members, failed = dict(opened.members), opened.failed | opened.owed
                    now = replace(opened, members=members, failed=failed, is_final=False)
                    opened.is_overdue = self._hand(now)

    async def catch_up(self) -> None:
        """Read the members of settled groups that a consumer needs from the output."""
        async with self._reading:
            while self._needed and not self.is_stopped:
                first = set(self._find_first())
                needed = {g: self._needed.pop(g) for g in first or list(self._needed)}
                try:
                    await self._read(needed)
                finally:
                    self._needed = needed | self._needed

    @property
    def is_urgent(self) -> bool:
        """Whether a group with a place is to be read."""
        return any(True for _ in self._find_first())

    def stop(self) -> None:
        """Read nothing more."""
        self.is_stopped = True

    async def finish(self) -> None:
        """Hand out everything that is settled."""
        self.go_on()
        await self.catch_up()

    def close(self) -> None:
        self.stop()
        self.go_on()

    def _note(self, outcome: Outcome) -> None:
        key = outcome.key
        if key.agent not in self._agents:
            return
        if isinstance(outcome, Rollout):
            place, encoded = self._place_of(key), find_encoded(outcome)
            self.noted.append((key, self._hold(key, outcome.line, encoded, place)))
        elif not isinstance(outcome, Unverified) or outcome.error is not None:
            self.noted.append((key, None))  # else its verdict is still to come

    def _hold(
        self,
        key: Key,
        line: JsonObject,
        encoded: bytes | None = None,
        place: HeldLine | None = None,
    ) -> HeldMember:
        member = hold(key, line, encoded) if key.agent in self._hashed else HeldMember(key)
        return member._replace(line=line, place=place) if self._with_lines else member

    def _place_of(self, key: Key) -> HeldLine | None:
        """Where the line of a rollout is that was just written."""
        journal = self._journal
        if not self._with_places or not isinstance(journal, Journal):
            return None
        if (offset := journal.written.get(key)) is None:
            return None
        raw = line_at(journal.main_file.descriptor, offset)
        return HeldLine.of(journal.paths.main, offset, raw)

    def _follow(self, key: Key, member: HeldMember | None, now: float) -> None:
        """Follow one outcome of this run."""
        opened = self._group(group := group_of(key))
        opened.began = min(opened.began, now)
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

    def _group(self, group: Group) -> FollowedGroup:
        return self._open.get(group) or self._open.setdefault(group, FollowedGroup(group))

    def _close_if_settled(self, group: Group, opened: FollowedGroup) -> None:
        if not opened.is_settled:
            return
        del self._open[group]
        opened.left_out = self._why_left_out(opened)
        if self._hand(opened):
            return
        if isinstance(self._journal, Journal):
            opened.let_go_of_members()
            self._needed[group] = opened
        else:  # without an output its rollouts cannot be read again
            opened.left_out = "incomplete"
            self._hand(opened)

    def _why_left_out(self, opened: FollowedGroup) -> str:
        """What the run's policy for incomplete groups makes of a settled group."""
        policy, number, failed = self._policy, opened.num_members, opened.failed
        if not number or (failed and policy.incomplete_groups == "wait"):
            return "incomplete"
        if policy.incomplete_groups == "drop" and (failed or self._is_late(opened)):
            return "dropped"
        return "incomplete" if failed and number < policy.min_members else ""

    def _is_late(self, opened: FollowedGroup) -> bool:
        deadline_s = self._policy.group_deadline_s or math.inf
        return running_loop().time() - opened.began >= deadline_s

    def _hand(self, settled: FollowedGroup, number: int = 0) -> bool:
        """Hand a group to the consumers from this one on."""
        if number == len(self._consumers):
            return True
        hand_on = partial(self._hand, settled, number + 1)
        return self._consumers[number].take(settled, hand_on)

    def _find_first(self) -> Iterator[Group]:
        """The groups to be read for which a consumer holds a place."""
        return (g for g in self._needed if any(each.has_place(g) for each in self._consumers))

    async def _read(self, needed: dict[Group, FollowedGroup]) -> None:
        """Hand out groups with their members, in one pass over the output; memory holds those that
        are begun."""
        journal = self._journal
        assert isinstance(journal, Journal)
        path, size = journal.paths.main, journal.size
        for number, line in enumerate(RolloutFile(path).heads(), 1):
            if line.offset >= size:
                break
            if number % BREATH == 0:
                await asyncio.sleep(0)
            assert line.head is not None
            if (found := needed.get(group_of(key := line.head.key))) is None:
                continue
            if found.members is None:
                found.members, found.row = {}, task_of(line.row)
            place = HeldLine.of(path, line.offset, line.raw) if self._with_places else None
            found.members[key] = self._hold(key, line.row, place=place)
            is_whole = len(found.members) == found.num_members and not found.is_reopened
            if is_whole and not await self._hand_read(needed, found):
                return
        for found in list(needed.values()):
            if not (found.is_reopened and found.members):
                found.left_out = LOST
            if not await self._hand_read(needed, found):
                return

    async def _hand_read(self, needed: dict[Group, FollowedGroup], found: FollowedGroup) -> bool:
        """Hand out a group that was read; False if others have to be read first, or none."""
        for consumer in self._consumers:
            if not await consumer.has_room(found.group):
                return False
        del needed[found.group]
        found.let_go = 0
        if not self._hand(found):
            found.let_go_of_members()
            self._needed[found.group] = found
        return not self.is_stopped
