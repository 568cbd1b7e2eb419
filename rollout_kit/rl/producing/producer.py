"""Beside a run: reserves a place for each group, puts it once it is complete, and notes what the
trainer has used.

The rollouts are journalled as ever, before the buffer sees them. So a buffer that was lost is
filled again from the output and from `<stem>.d/acks.jsonl`.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from socket import gethostname
from time import perf_counter
from typing import Any, TypeVar

from ...collecting.groups.slots import OpenGroup, OpenGroups
from ...collecting.run import Ending, Run
from ...collecting.schedule import Later
from ...config.keys import CollectConfig
from ...errors import ConfigError, OutputError, PeerError, RolloutKitError, number_of
from ...serving.transport.loop import beside, cancel_all, gather_all, interrupts
from ...store.groups.members import HeldLine, HeldMember, hold_line
from ...store.groups.reading import read_groups
from ...store.journal import Journal
from ...store.rollouts import find_group_rewards
from ...store.scope import Group, group_of
from ...time_limit import running_loop
from ...types import Attempt, JsonObject, Key, Say, Task
from ..buffer.buffer import Buffer
from ..buffer.memory import MemoryBuffer
from ..buffer.opening import open_buffer
from .acks import AckFile
from .epochs import EpochSource
from .gauges import TrainerGauges
from .groups import ScoredGroups, key_of_group, make_group, rewards_of, sort_members
from .stragglers import Stragglers

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 1.0
"""How often acks are fetched."""

RESERVE_EVERY_S = 0.02
"""Pause between two tries to reserve a place."""

STEP_EVERY_S = 0.1
"""How often over-provisioning looks whether a step has enough groups."""

AWAY_S = 1.0
"""Pause before a buffer that cannot be reached is asked again."""

MAX_PUTTING = 256
"""Groups of earlier runs that may wait in memory for room."""


class Producer:
    """For one run into one buffer."""

    def __init__(self, buffer: Buffer, run: Run, acks: AckFile, say: Say) -> None:
        self._buffer, self._run, self._acks, self._say = buffer, run, acks, say
        self._policy = run.command
        self._journal = run.collection.journal
        assert isinstance(run.source, EpochSource)
        self._source = run.source
        done = self._journal.contents.done
        plans = run.runner.agents
        self._scored_apart = {n for n, plan in plans.items() if plan.verifies_groups}
        self.open = OpenGroups(plans, done, self._settle, lambda: running_loop().time(), self._hold)
        self._tickets: dict[Group, tuple[str, int | None]] = {}
        """Groups in progress → their ticket, and the trainer's version when they began."""
        self._free: list[tuple[str, int | None]] = []
        self._wants, self._ready, self._looking = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._needed: dict[Group, int] = {}
        self._scored = ScoredGroups(self._take_score)
        self._places: dict[Key, HeldLine] = {}
        """Of the lines of this run, while their outcomes are on the way here."""
        self._putting: set[asyncio.Task[None]] = set()
        self.put: Counter[str] = Counter()
        """Answers of the buffer → how many."""
        self._gauges, self.stragglers = TrainerGauges(run.tally, say), Stragglers(run)
        self._refers = buffer.policy.reference_bytes is not None
        self._is_away, self._num_leased = False, 0
        self._owner = hashlib.sha256(f"{gethostname()}:{acks.path.resolve()}".encode()).hexdigest()
        """Of the tickets: those of a run that was killed are released by the next one."""

    async def begin(self) -> None:
        """Follow the run, and hold its attempts back."""
        await self._buffer.release(owner=self._owner)
        source, groups = self._source, self._run.groups
        first = source.on_task

        def plan(refused: Collection[Key], task: Task, keys: Sequence[Key]) -> None:
            if first:
                first(refused, task, keys)
            self.open.plan(refused, task, keys)

        source.on_task, source.gate = plan, self._hold_back
        source.follow_earlier = self.open.add_earlier
        self._run.observe(self.open)
        if self._refers and isinstance(journal := self._journal, Journal):
            journal.index.follow = partial(self._note_place, journal.paths.main)
        if groups.is_on:
            groups.followers.append(self._scored.add_score)

    async def work(self) -> None:
        """Reserve, and look after acks and tickets, until cancelled."""
        try:
            watching = [self._watch_steps()] if self._buffer.policy.over_provision else []
            await gather_all([self._reserve(), self._look_on(), *watching])
        except Exception as error:  # the run would wait for tickets for ever
            if not isinstance(error, RolloutKitError):
                log.exception("an unexpected error beside the run")
            text = f"{error}; the rollouts are on disk: the same command goes on"
            self._run.end_with(OutputError(text))

    async def look(self) -> None:
        """Journal what has left the buffer, and keep the tickets of what is in progress."""
        async with self._looking:  # or else both write down the same groups
            while settled := await self._ask(lambda: self._buffer.list_settled(self._acks.after)):
                self._acks.append(settled)
        for ticket, _ in [*self._tickets.values(), *self._free]:
            await self._ask(partial(self._buffer.extend, ticket))
        self._gauges.take(stats := await self._ask(self._buffer.stats))
        leased = 0 if stats["waiting"] else stats["leased"]
        if leased != self._num_leased:
            self._num_leased = leased
            self._ready.set()  # something else is waited for

    async def wait_for_trainer(self) -> None:
        """Wait until everything that was put has been used, or until Ctrl-C."""
        await self.put_rest()
        await self._buffer.finish()
        stopped, is_said = asyncio.Event(), False
        with interrupts(stopped.set):
            while (stats := await self._buffer.stats())["waiting"] + stats["leased"]:
                if not is_said:
                    left = number_of(stats["waiting"] + stats["leased"], "group")
                    self._say(f"waiting for the trainer to use {left}; Ctrl-C ends it")
                    is_said = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), LOOK_S)
                    return
                await self.look()

    async def put_rest(self) -> None:
        """Put everything that is complete."""
        if self._run.ending is not Ending.INTERRUPTED and not self._source.is_over:
            await self._fill()
            while self._putting:
                await asyncio.wait(self._putting, timeout=LOOK_S)
                await self.look()

    async def finish(self) -> None:
        """Put what is complete; give the places of the rest back."""
        await self.put_rest()
        await cancel_all(self._putting)
        tickets = [ticket for ticket, _ in [*self._tickets.values(), *self._free]]
        self._tickets, self._free = {}, []
        try:
            if tickets:
                await self._buffer.release(tickets)
            await self.look()
        except PeerError as error:  # the next run fetches what is missing
            self._say(f"warning: {error}")

    def _hold_back(self, attempts: Iterator[Attempt | Later]) -> Iterator[Attempt | Later]:
        """The attempts; the first one of a group waits for a ticket."""
        for attempt in attempts:
            if isinstance(attempt, Attempt) and attempt.stored is None:
                group = group_of(attempt.key)
                while group not in self._tickets:
                    if self._source.is_over:
                        return
                    if self._free:
                        self._tickets[group] = self._free.pop()
                    else:
                        self._ready.clear()
                        self._wants.set()
                        yield Later(self._ready, self._say_why())
            yield attempt

    def _say_why(self) -> str:
        """What is waited for where the buffer gives no ticket."""
        if not self._num_leased:
            return "the trainer to make room in the buffer"
        left = number_of(self._num_leased, "group")
        return f"the trainer to acknowledge {left} that it was handed out"

    async def _reserve(self) -> None:
        while True:
            await self._wants.wait()
            tickets = await self._ask(partial(self._buffer.reserve, owner=self._owner))
            self._gauges.take(stats := await self._ask(self._buffer.stats))
            if tickets:
                self._free += [(ticket, stats["version"]) for ticket in tickets]
                self._wants.clear()
                self._ready.set()
            elif stats["finished"]:
                self._source.is_over = True
                self._say("the trainer needs nothing more", event="buffer_finished")
                self._ready.set()
                return
            else:
                began = perf_counter()
                await asyncio.sleep(RESERVE_EVERY_S)
                if not self._run.schedule.in_flight:
                    self._run.meter.spent.trainer += perf_counter() - began

    def _settle(self, group: Group, opened: OpenGroup) -> None:
        """Every slot of a group has ended."""
        key, policy, number = key_of_group(group), self._policy, opened.num_members
        is_short = bool(opened.failed) and (
            policy.incomplete_groups != "partial" or number < policy.min_members
        )
        if key in self._acks.keys:
            self._drop_ticket(group)
        elif is_short or not number:
            self.put["incomplete"] += 1
            self._drop_ticket(group)
        elif opened.held is None:
            self._needed[group] = number
        elif group.agent in self._scored_apart and self._run.groups.is_on:
            self._scored.add_members(group, sort_members(opened.held))
        else:
            self._start(group, sort_members(opened.held), None)

    def _note_place(self, path: Path, key: Key, offset: int, raw: bytes) -> None:
        self._places[key] = HeldLine.of(path, offset, raw)

    def _hold(self, key: Key, line: JsonObject, encoded: bytes | None = None) -> HeldMember:
        return hold_line(key, line)._replace(place=self._places.pop(key, None))

    def _take_score(self, group: Group, members: list[HeldMember], line: JsonObject | None) -> None:
        if line is None:
            self.put["not scored"] += 1
            self._drop_ticket(group)
        else:
            self._start(group, members, rewards_of(line, members))

    def _start(
        self, group: Group, members: list[HeldMember], rewards: list[float | None] | None
    ) -> None:
        task = asyncio.create_task(self._put(group, members, rewards))
        self._putting.add(task)
        task.add_done_callback(self._putting.discard)

    async def _put(
        self, group: Group, members: list[HeldMember], rewards: list[float | None] | None
    ) -> None:
        ticket, began = self._tickets.get(group, ("", None))
        made = make_group(key_of_group(group), members, rewards, began)
        try:
            answer = await self._ask(partial(self._buffer.put, made, ticket=ticket))
        except (PeerError, ConfigError) as error:
            self._run.end_with(OutputError(str(error)))
            return
        self._tickets.pop(group, None)
        self.put[answer] += 1

    def _drop_ticket(self, group: Group) -> None:
        if (given := self._tickets.pop(group, None)) is not None:
            self._free.append(given)

    async def _watch_steps(self) -> None:
        while True:
            self.stragglers.follow(await self._ask(self._buffer.stats))
            await asyncio.sleep(STEP_EVERY_S)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()
            if self._run.is_counted:
                await self._fill()

    async def _fill(self) -> None:
        """Put complete groups with rollouts of earlier runs, as the buffer may not have them."""
        if not (needed := dict(self._needed)) or not isinstance(journal := self._journal, Journal):
            return
        self._needed = {group: n for group, n in self._needed.items() if group not in needed}
        scores = find_group_rewards(journal.paths.main) if self._scored_apart else None
        where = journal.paths.main, journal.size, needed, hold_line
        async for found in read_groups(*where, with_places=self._refers):
            while len(self._putting) >= MAX_PUTTING:
                await asyncio.wait(self._putting, return_when=asyncio.FIRST_COMPLETED)
            rewards = None
            if found.group.agent in self._scored_apart and self._run.groups.is_on:
                given = [scores.of(key) if scores else None for key in sorted(found.members)]
                rewards = [each.reward for each in given if each]
                if len(rewards) < len(given):
                    self.put["not scored"] += 1
                    continue
            self._start(found.group, sort_members(found.members), rewards)

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """The buffer's answer; it is asked again while it cannot be reached."""
        while True:
            try:
                found = await call()
            except PeerError as error:
                if not error.retryable or self._run.ending is Ending.INTERRUPTED:
                    raise
                if not self._is_away:
                    self._say(f"{error}; trying again", event="buffer_away")
                self._is_away = True
                await asyncio.sleep(AWAY_S)
            else:
                if self._is_away:
                    self._say("the buffer answers again", event="buffer_back")
                self._is_away = False
                return found


@asynccontextmanager
async def produce(buffer: Buffer, run: Run, say: Say) -> AsyncIterator[Producer]:
    """Context in which the groups of a run go into a buffer."""
    journal: Any = run.collection.journal
    await buffer.finish(False)
    identity = (await buffer.stats())["id"]
    acks = AckFile(journal.paths.acks, partial(journal.open_beside, journal.paths.acks), identity)
    producer = Producer(buffer, run, acks, say)
    await producer.begin()
    async with beside(producer.work()):
        yield producer
        await producer.finish()
    if stopped := producer.stragglers.report():
        say(f"Over-provisioning: {stopped}", event="over_provisioning")
    total = number_of(sum(producer.put.values()), "group")
    said = ", ".join(f"{number:,} {what}" for what, number in producer.put.most_common())
    say(f"Buffer: {total}{': ' if said else ''}{said}", event="buffer", groups=dict(producer.put))


@asynccontextmanager
async def into_buffer(run: Run, say: Say) -> AsyncIterator[None]:
    """Context in which the groups of a run go into the buffer that its command names. A buffer in
    memory is served over HTTP, until it is empty."""
    command, source = run.command, run.source
    assert isinstance(command, CollectConfig) and command.buffer is not None
    assert isinstance(source, EpochSource)
    async with AsyncExitStack() as stack:
        token = command.auth_token or ""
        buffer = await stack.enter_async_context(await open_buffer(command.buffer, token=token))
        is_mine = isinstance(buffer, MemoryBuffer)
        if is_mine:
            from ..buffer.http import serve_buffer  # other runs need no HTTP server

            served = serve_buffer(buffer, port=command.buffer_port, token=token)
            url = await stack.enter_async_context(served)
            say(f"Buffer: {url}", event="buffer_url", url=url)
        async with produce(buffer, run, say) as producer:
            yield
            if is_mine and run.ending is not Ending.INTERRUPTED and not source.is_over:
                await producer.wait_for_trainer()
