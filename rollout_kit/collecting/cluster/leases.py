"""A lease: an attempt that one worker holds at a time; and the worker as the driver knows it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from ...errors import PeerLost, RolloutError
from ...serving.transport.retry import LOST_ATTEMPT
from ...session import Session, current_session
from ...types import Attempt, JsonObject, Outcome, StoredTurn
from ..pacing.probe import WorkerLoad
from ..slot import Slot
from .messages import add_spent, decode_error, decode_outcome, decode_unverified

TOGETHER = 128
"""Leases that a worker may hold beside one with which a worker died; an eighth after each death."""

DEATHS_ALONE = 3
"""A lease that was with this many workers when they died, alone in the end, is what kills them."""


class Dismissed(Exception):
    """A worker that is believed to be gone speaks, and is to end."""


class NotAskedFor(Exception):
    """A worker speaks of something that it was never given."""


class Lease(asyncio.Future[Any]):
    """An attempt, or one call to a server that workers run: the future of what comes of it.

    `end` is called once with what came of it, None if that is nothing, and makes the result of it;
    `withdraw` is what to cancel the lease does.
    """

    __slots__ = (
        "_end",
        "_follow",
        "_withdraw",
        "attempt",
        "call",
        "given_up",
        "holder",
        "is_queued",
        "num_deaths",
        "num_lost",
        "number",
        "session",
        "slot",
    )

    def __init__(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        withdraw: Callable[["Lease"], bool],
        end: Callable[[Any], Any],
        attempt: Attempt | None = None,
        slot: Slot | None = None,
        call: JsonObject | None = None,
        session: Session | None = None,
    ) -> None:
        super().__init__(loop=loop)
        self.number = number
        self._withdraw, self._end = withdraw, end
        self._follow: Callable[[Any], object] | None = None
        self.attempt, self.slot, self.call, self.session = attempt, slot, call, session
        self.holder: Holder | None = None
        self.wait()
        self.given_up: asyncio.TimerHandle | None = None
        """Set once it is called back: when the wait for the answer is over."""
        self.num_lost = 0
        """Workers that were lost with it."""
        self.num_deaths = 0
        """Those whose process has ended: something that they held may have killed them."""

    def wait(self) -> None:
        """It is in the queue."""
        self.is_queued = True
        if self.slot is not None:
            self.slot.place.stage = "a worker"

    def cancel(self, msg: Any = None) -> bool:
        return not self.done() and self._withdraw(self)

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """The first function is called in the moment when the lease ends, as thousands end each
        second; others in the next turn of the event loop, as those of any future."""
        if self._follow is None and context is None and not self.done():
            self._follow = fn
        else:
            super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        if fn != self._follow:
            return super().remove_done_callback(fn)
        self._follow = None
        return 1 + super().remove_done_callback(fn)

    def read_answer(self, event: JsonObject) -> bytes | RolloutError:
        """What the server has answered, by the event of a call."""
        if (session := self.session) is not None and "spent" in event:
            add_spent(event["spent"], session.spent)
            session.stats |= event["stats"]
        return decode_error(event["error"]) if "error" in event else event["body"].encode()

    def finish(self, found: Any) -> None:
        """Have it end by an outcome or an answer, or by nothing: None."""
        if self.given_up is not None:
            self.given_up.cancel()
        try:
            found = self._end(found)
        except Exception as error:
            self.set_exception(error)
        else:
            if found is None:
                super().cancel()
            else:
                self.set_result(found)
        if (follow := self._follow) is not None:
            follow(self)

    @property
    def room(self) -> int | None:
        """How many leases a worker may hold beside it at most; None if it is above suspicion."""
        return max(1, TOGETHER >> 3 * (self.num_deaths - 1)) if self.num_deaths > 1 else None

    def resume(self) -> None:
        """Have the next worker continue from the turns that the last one has reported."""
        if self.slot is not None and self.attempt is not None and self.attempt.stored is None:
            self.update(turns=tuple(self.slot.turns))

    def update(self, **changes: Any) -> None:
        """Have another attempt go on from what this one has reached."""
        assert self.attempt is not None and self.slot is not None
        self.attempt = self.slot.attempt = self.attempt._replace(**changes)


def result_of(found: bytes | RolloutError | None) -> bytes | None:
    """What the caller of a server gets; its error is raised."""
    if isinstance(found, RolloutError):
        raise found
    return found


@dataclass(slots=True, eq=False)
class Holder:
    """A worker as the driver knows it."""

    id: str
    title: str
    heard: float
    """When its event loop has spoken."""
    alive: float
    """When it has given a sign of life."""
    is_blocked: bool = False
    """Whether people know that only its event loop is silent."""
    held: dict[int, Lease] = field(default_factory=dict)
    recalled: list[int] = field(default_factory=list)
    """Leases that it is to cancel."""
    regained: list[tuple[int, bool]] = field(default_factory=list)
    waiting: "asyncio.Future[None] | None" = None
    """Set while it waits for something to do."""

    def recall(self, number: int) -> None:
        """Have it cancel a lease."""
        self.recalled.append(number)
        self.wake()

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)


RECALL_S = 10.0
"""Time for a worker to hand over what it has of an attempt that is cancelled."""

GATHER_S = 0.01
"""Time for which leases gather before waiting workers are woken; most are in a reply by then."""

START_S = 10.0
"""Time after the first lease for which workers that start have their share kept."""

MOST_AT_ONCE = 256
"""Leases in one reply."""

OF_HOLDER = frozenset({"freed", "regain", "turn", "cancelled"})
"""Events about the attempt that goes on, and so heeded only from the worker that has it."""


class Leases:
    """`clock` is in seconds; a worker is lost that was silent for `lease_s`; `say` reports it."""

    def __init__(
        self,
        clock: Callable[[], float],
        lease_s: float = 15.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.members: dict[str, Holder] = {}
        self.known: set[str] = set()
        """All workers that ever joined."""
        self._ended: set[str] = set()
        """Workers that are gone for good."""
        self.num_again = 0
        """Leases that were given out again because their worker was lost."""
        self._clock, self._lease_s, self._say = clock, lease_s, say
        self._loop = asyncio.get_running_loop()
        self._looked = clock()
        self.num_expected = 0
        """Workers that were started."""
        self._shared_since: float | None = None
        self._loads: dict[str, list[float]] = {}
        self._queue: deque[Lease] = deque()
        self._open: dict[int, Lease] = {}
        self._last_number = 0
        self._waking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_waiting(self) -> int:
        """Leases that no worker holds."""
        return len(self._queue)

    def lease(
        self,
        attempt: Attempt,
        slot: Slot,
        end: Callable[[Outcome | PeerLost | None], Outcome | None],
    ) -> Lease:
        """Have a worker make an attempt; `end` gets what comes of it, None if it was cancelled, and
        makes the result. Cancelled, it is called back; a response in hand is kept."""
        return self._add(end, attempt, slot)

    async def call(self, server: str, path: str, raw: bytes | None) -> Any:
        """One call to a server that workers run; its RolloutError if it fails."""
        session = current_session()
        call = {"server": server, "path": path, "body": None if raw is None else raw.decode()}
        return await self._add(result_of, None, None, call, session)

    def note_load(self, id: str, figures: list[float]) -> None:
        """What a worker reports of itself, since its start."""
        self._loads[id] = figures

    def load(self) -> WorkerLoad:
        """Of all workers together, also those that are gone."""
        return WorkerLoad(*map(sum, zip(*self._loads.values(), strict=True)))

    def join(self, id: str, title: str) -> Holder:
        """A worker that may lease from now on."""
        self.known.add(id)
        now = self._clock()
        member = self.members[id] = Holder(id, title, now, now)
        return member

    def hear(self, id: str, title: str) -> tuple[Holder, bool]:
        """The worker that has just spoken, and whether it holds nothing that it may believe to
        hold: it was lost meanwhile, and is back. Dismissed if it is to end."""
        if id not in self.known or id in self._ended:
            raise Dismissed(f"{title} was given up")
        if (member := self.members.get(id)) is not None:
            member.heard = member.alive = self._clock()
            member.is_blocked = False
            return member, False
        self._say(f"{title} is back")
        return self.join(id, title), True

    def feel(self, id: str) -> None:
        """A sign of life of a worker, whose event loop may be blocked."""
        if (member := self.members.get(id)) is not None:
            member.alive = self._clock()

    def lose(self, id: str, why: str, *, for_good: bool = True) -> None:
        """A worker is gone: what it held goes to the others. It may come back if not `for_good`."""
        if for_good:
            self._ended.add(id)
        if (member := self.members.pop(id, None)) is None:
            return
        number = len(member.held)
        what = f": {number:,} rollouts in flight go to other workers" if number else ""
        self._say(f"{member.title} is lost, it {why}{what}")
        for lease in reversed(list(member.held.values())):
            lease.num_deaths += for_good
            self._requeue(lease, member)
        member.held.clear()
        member.wake()
        self._wake_soon()

    def dismiss_all(self) -> None:
        """Every worker is to end: the run is over."""
        for member in self.members.values():
            self._ended.add(member.id)
            member.wake()
        self.members.clear()

    def lose_silent(self) -> None:
        """Lose the workers that were silent for too long."""
        now = self._clock()
        if now - self._looked > self._lease_s / 2:  # it was the driver that stood still
            for member in self.members.values():
                member.heard = member.alive = now
        self._looked = now
        for member in list(self.members.values()):
            if now - member.alive > self._lease_s:
                self.lose(member.id, f"was silent for {self._lease_s:g} s", for_good=False)
            elif now - member.heard > self._lease_s and not member.is_blocked:
                member.is_blocked = True
                self._say(
                    f"{member.title} lives, but something blocks its event loop for"
                    f" {self._lease_s:g} s now: make a blocking async def a plain def"
                )

    def grant(self, member: Holder, want: int) -> list[Lease]:
        """Leases for a worker: its share of all that are in flight, and not more than it wants."""
        if self.members.get(member.id) is not member:
            raise Dismissed(f"{member.title} was lost while it waited")
        number = len(self.members)
        if self._shared_since is None:
            self._shared_since = self._clock()
        if self._clock() - self._shared_since < START_S:  # a part is for those that still start
            number = max(number, self.num_expected)
        share = ceil(len(self._open) / number)
        number = min(want, share - len(member.held), len(self._queue), MOST_AT_ONCE)
        rooms = [each.room for each in member.held.values()] if self.num_again else []
        room = min(filter(None, rooms), default=None)
        granted: list[Lease] = []
        for _ in range(number):
            if (of_next := self._queue[0].room) is not None:
                room = of_next if room is None else min(room, of_next)
            if room is not None and len(member.held) >= room:
                break  # what may kill a worker is kept apart, to lose little and to find it
            granted.append(lease := self._queue.popleft())
            lease.holder, lease.is_queued = member, False
            member.held[lease.number] = lease
            if lease.slot is not None:
                lease.slot.place.stage = member.title
        if not self._queue and self._waking is not None:
            self._waking.cancel()
            self._waking = None
        return granted

    def take(self, member: Holder, events: Iterable[JsonObject]) -> None:
        """What a worker reports, in order; NotAskedFor if it speaks of an unknown lease."""
        for event in events:
            number = event["lease"]
            if (lease := self._open.get(number)) is None:
                if number > self._last_number:
                    raise NotAskedFor(f"there is no lease {number}")
                member.held.pop(number, None)  # cancelled meanwhile, or settled by another worker
            elif (slot := lease.slot) is None:
                self._answer(member, lease, event)
            else:
                self._take(member, lease, slot, event)

    def _take(self, member: Holder, lease: Lease, slot: Slot, event: JsonObject) -> None:
        kind = event["kind"]
        if "spent" in event:
            add_spent(event["spent"], slot.ledger.spent)
        if kind == "parked":
            unverified = decode_unverified(event)
            lease.update(stored=unverified.line, turns=())
            slot.place.hand_out(unverified)
        elif kind in OF_HOLDER:
            if lease.holder is member:  # else it was believed lost, and another one has it
                self._take_step(member, lease, slot, event)
        else:
            slot.ledger.limited_s += event["limited_s"]
            slot.worked_s = event.get("worked_s")
            assert lease.attempt is not None
            self._settle(member, lease, decode_outcome(event, lease.attempt.key))

    def _take_step(self, member: Holder, lease: Lease, slot: Slot, event: JsonObject) -> None:
        match event["kind"]:
            case "freed":
                slot.place.free()
            case "regain":
                self._begin(self._regain(lease, slot, member))
            case "turn":
                self._take_turn(lease, slot, event["content"])
            case _:
                self._end(lease, None)

    def _answer(self, member: Holder, lease: Lease, event: JsonObject) -> None:
        self._settle(member, lease, lease.read_answer(event))

    def _take_turn(self, lease: Lease, slot: Slot, content: JsonObject | None) -> None:
        assert lease.attempt is not None
        if content is None:
            slot.turns.clear()
        else:
            slot.keep_turn(content)
        key, task_index = lease.attempt.key, lease.attempt.task.task_index
        slot.place.store_turn(StoredTurn(key, task_index, content))

    async def _regain(self, lease: Lease, slot: Slot, member: Holder) -> None:
        if is_granted := await slot.place.regain():
            lease.update(stored=None, regenerated=True)
        member.regained.append((lease.number, is_granted))
        member.wake()

    def _settle(self, member: Holder, lease: Lease, found: Any) -> None:
        if lease.holder is not None and lease.holder is not member:
            lease.holder.recall(lease.number)  # a worker that was believed lost has done it
        self._end(lease, found)

    def _add(self, end: Callable[[Any], Any], *what: Any) -> Lease:
        number = self._last_number = self._last_number + 1
        lease = self._open[number] = Lease(number, self._loop, self._withdraw, end, *what)
        self._queue.append(lease)
        if self._waking is None:
            self._wake_soon()
        return lease

    def _withdraw(self, lease: Lease) -> bool:
        """Have the worker hand over what it has of an attempt; called again, do not wait for it."""
        if (holder := lease.holder) is not None:
            holder.recall(lease.number)
            if lease.slot is not None and lease.given_up is None:
                lease.given_up = self._loop.call_later(RECALL_S, self._end, lease, None)
                return True
        self._end(lease, None)
        return True

    def _requeue(self, lease: Lease, member: Holder) -> None:
        lease.holder = None
        if lease.given_up is not None:
            self._end(lease, None)
            return
        lease.num_lost += 1
        is_culprit = lease.num_deaths >= DEATHS_ALONE and len(member.held) == 1
        if lease.num_lost < LOST_ATTEMPT.max_tries and not is_culprit:
            self.num_again += 1
            lease.resume()
            lease.wait()
            self._queue.appendleft(lease)
            self._wake_soon()
            return
        error = PeerLost(
            f"{lease.num_lost} workers were lost while they worked on it, the last one was"
            f" {member.title}",
            retryable=False,
        )
        self._end(lease, error)

    def _end(self, lease: Lease, found: Any) -> None:
        if (holder := lease.holder) is not None:
            holder.held.pop(lease.number, None)
            lease.holder = None
        elif lease.is_queued:
            lease.is_queued = False
            self._queue.remove(lease)
        del self._open[lease.number]
        lease.finish(found)

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wake_soon(self) -> None:
        """Wake workers that wait, once what is added in this turn of the loop is there."""
        if self._waking is None:
            self._waking = self._loop.call_later(GATHER_S, self._wake_some)

    def _wake_some(self) -> None:
        self._waking = None
        if not self._queue:
            return
        idle = [each for each in self.members.values() if each.waiting is not None]
        idle.sort(key=lambda each: len(each.held))
        left = len(self._queue)
        for member in idle:
            if left <= 0:
                return
            member.wake()
            left -= ceil(len(self._queue) / len(idle))
