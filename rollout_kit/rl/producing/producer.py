"""Beside a run: reserves a place for each group, puts it once it is complete, and notes what the
trainer has used.

The rollouts are journalled as ever, before the buffer sees them. So a buffer that was lost is
filled again from the output and from `<stem>.d/acks.jsonl`.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from socket import gethostname
from time import perf_counter
from typing import Any, TypeVar

from ...collecting.ending import Ending
from ...collecting.groups.following import FollowedGroup
from ...collecting.run import Run
from ...config.keys import CollectConfig
from ...errors import ConfigError, OutputError, PeerError, RolloutKitError, number_of
from ...serving.transport.loop import beside, cancel_all, gather_all, interrupts
from ...store.scope import Group, key_of_group
from ...trajectory import span_versions, versions_of
from ...types import Say
from ..buffer.buffer import Buffer
from ..buffer.group import BufferedGroup
from ..buffer.memory import MemoryBuffer
from ..buffer.opening import open_buffer
from ..evaluation.eval_file import read_evaluation
from ..evaluation.evaluations import Evaluations
from .acks import AckFile
from .epochs import EpochSource
from .gauges import TrainerGauges
from .stragglers import Stragglers
from .tickets import BufferTicket

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
        assert isinstance(run.source, EpochSource)
        self.source = run.source
        self._tickets, self._looking = run.source.tickets, asyncio.Lock()
        self._putting: set[asyncio.Task[None]] = set()
        self.put: Counter[str] = Counter()
        """Answers of the buffer → how many."""
        self._gauges, self.stragglers = TrainerGauges(run.tally, say), Stragglers(run)
        self.evaluations = self._find_evaluations()
        self._is_away = False
        self._owner = hashlib.sha256(f"{gethostname()}:{acks.path.resolve()}".encode()).hexdigest()
        """Of the tickets: those of a run that was killed are released by the next one."""

    @property
    def is_needed(self) -> bool:
        """Whether groups are put to the last one: neither Ctrl-C nor the trainer has ended that."""
        return self._run.ending is not Ending.INTERRUPTED and not self._tickets.is_over

    async def begin(self) -> None:
        """Use the groups of the run, and hold its attempts back."""
        await self._buffer.release(owner=self._owner)
        self._tickets.limit()
        self.source.note_used(self._acks.used)
        if self.evaluations:
            await self.evaluations.begin()
        else:
            await self._buffer.hold_every(0)
        refers = self._buffer.policy.reference_bytes is not None
        agents = self._run.runner.agents
        self._run.groups.add(self, agents, with_lines=True, with_places=refers)

    def take(self, settled: FollowedGroup, hand_on: Callable[[], bool]) -> bool:
        """Put a group that counts into the buffer, unless it has left it before."""
        group, is_over = settled.group, self._tickets.is_over
        if not settled.is_final:
            return hand_on()
        if key_of_group(group) in self._acks.keys:
            self._tickets.give_back(group)
        elif settled.left_out:
            self.put[settled.left_out] += 1
            self.source.note_lost(group)
            self._tickets.give_back(group)
        elif settled.members is None:
            return False
        elif group in self._tickets.given or not is_over:
            self.source.note_complete(group)
            task = asyncio.create_task(self._put(settled))
            self._putting.add(task)
            task.add_done_callback(self._putting.discard)
        return hand_on()

    def has_place(self, group: Group) -> bool:
        return group in self._tickets.given

    async def has_room(self, group: Group) -> bool:
        groups, tickets, first = self._run.groups, self._tickets, asyncio.FIRST_COMPLETED
        while len(self._putting) >= MAX_PUTTING and not (self.has_place(group) or tickets.is_over):
            if groups.is_stopped or groups.is_urgent:
                return False
            await asyncio.wait(self._putting, timeout=LOOK_S, return_when=first)
        return True

    async def work(self) -> None:
        """Reserve, and look after acks and tickets, until cancelled."""
        try:
            watching = [self._watch_steps()] if self._buffer.policy.over_provision else []
            if self.evaluations:
                watching.append(self.evaluations.work())
            watching.append(self.source.watch(self._run, self._say))
            await gather_all([self._reserve(), self._look_on(), self._read_on(), *watching])
        except Exception as error:  # the run would wait for tickets for ever
            if not isinstance(error, RolloutKitError):
                log.exception("an unexpected error beside the run")
            text = f"{error}; the rollouts are on disk: the same command goes on"
            self._run.end.fail(OutputError(text))

    async def look(self) -> None:
        """Journal what has left the buffer, and keep the tickets of what is in progress."""
        async with self._looking:  # or else both write down the same groups
            while settled := await self._ask(lambda: self._buffer.list_settled(self._acks.after)):
                self._acks.append(settled)
                self.source.note_settled(settled)
        for ticket in self._tickets.names():
            await self._ask(partial(self._buffer.extend, ticket))
        more = {**self.source.measure(), **self.stragglers.measure()}
        self._gauges.take(stats := await self._ask(self._buffer.stats), more)
        self._tickets.note_leased(0 if stats["waiting"] else stats["leased"])

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
        while self._putting and self.is_needed:
            await asyncio.wait(self._putting, timeout=LOOK_S)
            await self.look()

    async def finish(self) -> None:
        """Put what is complete; give the places of the rest back."""
        await self.put_rest()
        await cancel_all(self._putting)
        if self.evaluations and self._run.ending is not Ending.INTERRUPTED:
            await self.evaluations.look()  # the last version
        tickets = self._tickets.take_all()
        try:
            if tickets:
                await self._buffer.release(tickets)
            await self.look()
        except PeerError as error:  # the next run fetches what is missing
            self._say(f"warning: {error}")

    def _find_evaluations(self) -> Evaluations | None:
        command = self._run.command
        if not isinstance(command, CollectConfig) or command.eval is None:
            return None
        asked, every = read_evaluation(command.eval), command.eval_every
        take = self._gauges.take_evaluation
        return Evaluations(self._buffer, self._run, asked, every, self._say, take, self._ask)

    async def _reserve(self) -> None:
        while True:
            await self._tickets.wanted.wait()
            tickets = await self._ask(partial(self._buffer.reserve, owner=self._owner))
            self._gauges.take(stats := await self._ask(self._buffer.stats))
            if tickets:
                self._tickets.add([BufferTicket(name, stats["version"]) for name in tickets])
            elif stats["finished"]:
                self._tickets.end()
                self._say("the trainer needs nothing more", event="buffer_finished")
                return
            else:
                began = perf_counter()
                await asyncio.sleep(RESERVE_EVERY_S)
                if not self._run.schedule.in_flight:
                    self._run.meter.spent.trainer += perf_counter() - began

    async def _put(self, settled: FollowedGroup) -> None:
        ticket = self._tickets.given.get(settled.group, BufferTicket())
        made = make_group(settled, ticket.version, self.source.scale_of(settled.group))
        try:
            answer = await self._ask(partial(self._buffer.put, made, ticket=ticket.name))
        except (PeerError, ConfigError) as error:
            self._run.end.fail(OutputError(str(error)))
            return
        self._tickets.given.pop(settled.group, None)
        self.put[answer] += 1
        if answer == "ok":
            self.source.note_put(made)
        elif answer != "duplicate":
            self.source.note_lost(settled.group)

    async def _watch_steps(self) -> None:
        while True:
            self.stragglers.follow(await self._ask(self._buffer.stats))
            await asyncio.sleep(STEP_EVERY_S)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def _read_on(self) -> None:
        """Have groups with rollouts of earlier runs read, as the buffer may not have them."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._run.is_counted:
                await self._run.groups.catch_up()

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


def make_group(settled: FollowedGroup, began: int | None, scale: float = 1.0) -> BufferedGroup:
    """Where the model server tells no versions, that of the trainer at the group's begin counts.
    The rewards are multiplied by `scale`."""
    members = [each for each in settled.slots if each]
    scores = settled.score["members"] if settled.score else ()
    of = {(one["scope"], one["rollout_index"]): one["reward"] for one in scores}
    rewards = [of.get(each.key[2:]) for each in members] if of else []
    lines, places = [each.line for each in members], [each.place for each in members if each.place]
    found = span_versions(versions_of(line["response"].get("output") or ()) for line in lines)
    first, last = (found.first, found.last) if found else (began, began)
    places = places if len(places) == len(lines) else []
    if scale != 1.0:
        given = rewards or [line.get("reward") for line in lines]
        rewards = [None if each is None else each * scale for each in given]
    return BufferedGroup(key_of_group(settled.group), lines, rewards, first, last, places)


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
    if producer.evaluations and (evaluated := producer.evaluations.report()):
        say(evaluated, event="evaluations")
    if mixed := producer.source.report():
        say(mixed, event="mix", **producer.source.measure())
    total = number_of(sum(producer.put.values()), "group")
    said = ", ".join(f"{number:,} {what}" for what, number in producer.put.most_common())
    say(f"Buffer: {total}{': ' if said else ''}{said}", event="buffer", groups=dict(producer.put))


@asynccontextmanager
async def into_buffer(run: Run, say: Say) -> AsyncIterator[None]:
    """Context in which the groups of a run go into the buffer that its command names. A buffer in
    memory is served over HTTP, until it is empty."""
    command = run.command
    assert isinstance(command, CollectConfig) and command.buffer is not None
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
            if is_mine and producer.is_needed:
                await producer.wait_for_trainer()
