"""Follows the groups of a run, once, and hands each to its consumers when it is settled.

A group is settled when it is planned, each of its slots has a rollout or failed in this run, and
its rollouts of earlier runs are known. Only open groups are held. A group whose rollouts were all
made in this run keeps their content. Of any other it knows the sum of their digests, and its
members are read from the output if a consumer needs them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

from ...errors import OutputError
from ...reading import line_at
from ...store.groups.members import HeldLine, HeldMember, group_digest, hold
from ...store.groups.reading import read_groups
from ...store.journal import Journal
from ...store.scope import Group, group_of, without_arm
from ...time_limit import running_loop
from ...types import JsonObject, Key, Outcome, Rollout, StoredTurn, Task, Unverified
from ..plan import Collection as Work

log = logging.getLogger(__name__)

SCOPE = attrgetter("scope")

GATHER_S = 0.05
"""Time in which outcomes of scored groups are gathered. Going through them one after the other, and
asking about the groups that they settle, takes two thirds of the CPU that it takes between the
steps of other work."""

LOST = "its rollouts are not in the output any more"
"""Why a group is left out whose members were to be read from the output."""


class SettledGroup(NamedTuple):
    """A group whose slots are settled."""

    group: Group
    task_index: int
    row: JsonObject
    """The row of its task, without create params if the group was read from the output."""
    members: dict[Key, HeldMember | None] | None
    """Its slots in order, None for one that failed. Without them, its members are on disk only."""
    num_members: int | None
    """None: this run settled it before, with fewer members."""
    failed: frozenset[Key]
    let_go: int = 0
    """Sum of the digests of members that are not here."""
    left_out: str = ""
    """Why the group does not count: `incomplete`, `dropped`, …"""
    is_final: bool = True
    """False at its deadline, if members may still come."""
    score: JsonObject | None = None
    """The line of its score, from the consumer that scores groups."""

    @property
    def there(self) -> list[HeldMember]:
        """The members that did not fail, in the order of their slots."""
        return [each for each in (self.members or {}).values() if each]

    @property
    def digest(self) -> str:
        return group_digest(self.let_go + sum(each.digest for each in self.there))


HandOn = Callable[[SettledGroup], bool]
"""Hands a group to the next consumer."""


class GroupConsumer(Protocol):
    """Uses the groups of a run. Consumers get each group in turn."""

    def take(self, settled: SettledGroup, hand_on: HandOn) -> bool:
        """Use a group and hand it on, at once or later. False, before anything was done with it,
        if that or the next consumer needs its members, or has no room: then it comes again, read
        from the output."""
        ...

    async def wait_for_room(self) -> None:
        """Wait until there is room for a group that is read from the output."""


@dataclass(slots=True)
class OpenGroup:
    """A group in progress."""

    task_index: int = 0
    is_planned: bool = False
    owed: set[Key] = field(default_factory=set)
    failed: set[Key] = field(default_factory=set)
    early: set[Key] = field(default_factory=set)
    """Keys that ended before the group was planned."""
    is_reopened: bool = False
    """Whether it was settled before, and a further row of the same task came."""
    num_earlier: int = 0
    """Rollouts on disk that are still to be read; below 0 until the group is planned."""
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

    def add(self, member: HeldMember) -> None:
        self.num_members += 1
        if self.held is None:
            self.let_go += member.digest
        else:
            self.held[member.key] = member

    def let_go_of_members(self) -> None:
        """Hold only the sum of their digests from now on."""
        self.let_go += sum(each.digest for each in (self.held or {}).values())
        self.held = None

    def settle(self, group: Group, **more: object) -> SettledGroup:
        """The group as it is; what is owed has failed."""
        slots = None
        if (held := self.held) is not None:
            slots = {key: held.get(key) for key in sorted({*held, *self.owed, *self.failed})}
        number = None if self.is_reopened else self.num_members
        failed = frozenset(self.failed)
        found = SettledGroup(group, self.task_index, self.row, slots, number, failed, self.let_go)
        return found._replace(**more)


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
        self._open: dict[Group, OpenGroup] = {}
        self._noted: list[tuple[Key, HeldMember | None]] = []
        """Outcomes to go through: members, and None for what failed."""
        self._needed: dict[Group, SettledGroup] = {}
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
            self._source.follow(self)
        self._consumers.append(consumer)
        self._agents |= set(agents)
        self._hashed |= set(agents if hashed else ())
        self._with_lines |= with_lines
        self._with_places |= with_places

    @property
    def is_behind(self) -> bool:
        """Whether outcomes wait until they are followed."""
        return bool(self._noted)

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
                opened.row, opened.is_reopened = task.row, task.first_rollout > 0
                if not opened.is_reopened:  # else they were read before it was settled
                    opened.num_earlier += len(earlier)
                    self.planned[task.agent] += 1
                if earlier or opened.is_reopened:
                    opened.let_go_of_members()
            again = {key for key in own if key in refused} if refused else set()
            opened.failed |= again
            opened.owed |= set(own).difference(again, earlier, opened.early)
            self._close_if_settled(group, opened)

    def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Write outcomes, and follow them: those of scored groups with others, as many at once take
        less time. A rollout that was just written is in the processor's cache: to hold it now takes
        half of the time."""
        kept, was_behind = self._journal.append_all(outcomes), self.is_behind
        if self._consumers:
            for outcome in kept:
                self._note(outcome)
        if self._noted and not self._hashed:
            self.go_on()
        elif self._noted and not was_behind:
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
        opened.add(self._hold(key, rollout.line, rollout.encoded))
        self._close_if_settled(group, opened)

    def go_on(self) -> None:
        """Follow the outcomes that were noted."""
        noted, self._noted, now = self._noted, [], running_loop().time()
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
            for group, opened in self._open.items():
                if opened.is_overdue or not self._is_late(opened):
                    continue
                opened.is_overdue = True
                is_enough = opened.num_members >= policy.min_members
                if policy.incomplete_groups == "partial" and is_enough and opened.held:
                    self._hand(opened.settle(group, is_final=False))

    async def catch_up(self) -> None:
        """Read the settled groups whose members a consumer needs from the output."""
        async with self._reading:
            while self._needed and not self.is_stopped:
                await self._read_needed()

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
            member = self._hold(key, outcome.line, outcome.encoded)
            self._noted.append((key, self._with_place(member, outcome)))
        elif not isinstance(outcome, Unverified) or outcome.error is not None:
            self._noted.append((key, None))  # else its verdict is still to come

    def _hold(self, key: Key, line: JsonObject, encoded: bytes | None = None) -> HeldMember:
        member = hold(key, line, encoded) if key.agent in self._hashed else HeldMember(key)
        return member._replace(line=line) if self._with_lines else member

    def _with_place(self, member: HeldMember, rollout: Rollout) -> HeldMember:
        journal, offset = self._journal, rollout.offset
        if not self._with_places or offset is None or not isinstance(journal, Journal):
            return member
        raw = line_at(journal.main_file.descriptor, offset)
        return member._replace(place=HeldLine.of(journal.paths.main, offset, raw))

    def _follow(self, key: Key, member: HeldMember | None, now: float) -> None:
        """Follow one outcome of this run."""
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

    def _group(self, group: Group) -> OpenGroup:
        opened = self._open.get(group)
        if opened is None:
            opened = self._open[group] = OpenGroup()
        return opened

    def _earlier(self, group: Group) -> Iterator[Key]:
        return (key for key in self._done.of_task(*group[:2]) if group_of(key) == group)

    def _close_if_settled(self, group: Group, opened: OpenGroup) -> None:
        if not opened.is_settled:
            return
        del self._open[group]
        settled = opened.settle(group, left_out=self._why_left_out(opened))
        if self._hand(settled):
            return
        if isinstance(self._journal, Journal):
            self._needed[group] = settled._replace(row={}, members=None)
        else:  # without an output its rollouts cannot be read again
            self._hand(settled._replace(left_out="incomplete"))

    def _why_left_out(self, opened: OpenGroup) -> str:
        """What the run's policy for incomplete groups makes of a settled group."""
        policy, number, failed = self._policy, opened.num_members, opened.failed
        if not number or (failed and policy.incomplete_groups == "wait"):
            return "incomplete"
        if policy.incomplete_groups == "drop" and (failed or self._is_late(opened)):
            return "dropped"
        return "incomplete" if failed and number < policy.min_members else ""

    def _is_late(self, opened: OpenGroup) -> bool:
        deadline_s, began = self._policy.group_deadline_s, opened.began
        if deadline_s is None or began is None:
            return False
        return running_loop().time() - began >= deadline_s

    def _hand(self, settled: SettledGroup, number: int = 0) -> bool:
        """Hand a group to the consumers from this one on."""
        if number == len(self._consumers):
            return True
        return self._consumers[number].take(settled, partial(self._hand, number=number + 1))

    async def _read_needed(self) -> None:
        """Go through the output once."""
        journal = self._journal
        assert isinstance(journal, Journal)
        needed, self._needed = self._needed, {}
        sizes = {group: each.num_members for group, each in needed.items()}
        where = journal.paths.main, journal.size
        try:
            async for found in read_groups(
                *where, sizes, self._hold, with_places=self._with_places
            ):
                for consumer in self._consumers:
                    await consumer.wait_for_room()
                if self.is_stopped:
                    return
                want = needed.pop(found.group)
                members = {**dict.fromkeys(want.failed), **found.members}
                slots = {key: members[key] for key in sorted(members)}
                if not self._hand(want._replace(row=found.task, members=slots, let_go=0)):
                    self._needed[found.group] = want
            while needed:
                self._hand(needed.popitem()[1]._replace(left_out=LOST))
        finally:
            self._needed = needed | self._needed
