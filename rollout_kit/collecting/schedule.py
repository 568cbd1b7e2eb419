"""Attempts in, outcomes out as they finish: never more than `limit()` in flight, and always as
many as there are attempts for.

The work per completion does not grow with the number in flight.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from time import perf_counter, thread_time
from typing import Protocol

from ..serving.transport.loop import cancel_all, when_quiet
from ..types import Attempt, Outcome, PutAside, Result, StoredTurn, Unverified
from .batches.aside import Aside
from .slot import Place, Slot

Running = asyncio.Future[Result]
"""An attempt in flight."""

Work = Callable[[Attempt, Slot], Running]
"""Begins an attempt. To cancel the future is to stop the attempt."""

WAVE = 16
"""Attempts that are started without a pause."""

PAUSE = 2
"""Pause after a wave, as a multiple of the CPU time that the wave took."""


@dataclass(frozen=True, slots=True)
class Later:
    """A source has nothing yet: ask again once `ready` is set, or after other work if None.

    Example:

        ready = asyncio.Event()
        print(rk.Later(ready, "rows of the database").what)
    """

    ready: asyncio.Event | None = None
    what: str = ""
    """What is waited for, in words for people."""


class End:
    """A source has nothing more."""


LATER, END = Later(), End()


class Source(Protocol):
    """Where attempts come from. So collection, estimate and re-verification are one loop."""

    def next(self) -> Attempt | Later | End: ...


class Sink(Protocol):
    """Where outcomes go."""

    def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Keep outcomes; returns each, or the failure to keep it."""
        ...

    def append_turn(self, turn: StoredTurn) -> None:
        """Keep a turn of a rollout in progress."""
        ...


class Attempts:
    """A source over an iterator."""

    def __init__(self, attempts: Iterator[Attempt | Later]) -> None:
        self._attempts = attempts

    def next(self) -> Attempt | Later | End:
        return next(self._attempts, END)


class Schedule:
    """Runs the attempts of `source`; iterate over `batches()` to drive it.

    What ends in one turn of the event loop goes to `sink` together, before anything else sees it.
    """

    def __init__(
        self,
        source: Source,
        work: Work,
        sink: Sink,
        limit: Callable[[], int],
        *,
        room: Callable[[], float] = lambda: math.inf,
        measure: Callable[[Slot, Outcome], object] = lambda slot, outcome: None,
        max_parked: int = 1024,
        cpu_time: Callable[[], float] = thread_time,
    ) -> None:
        self._source = source
        self._work = work
        self._sink = sink
        self._measure = measure
        self._limit = limit
        self._room = room
        """Attempts that may have begun and not ended, those that wait for batches among them."""
        self._max_parked = max_parked
        self._cpu_time = cpu_time
        self._ended: list[Running] = []
        """Attempts that have ended, and are not kept yet."""
        self._ready: deque[_Ready] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._waiter: asyncio.Future[None] | None = None
        self.slots: dict[Running, Slot] = {}
        """What is in flight, in the order of its start. To withdraw an attempt, set its `withdraw`
        and cancel its future."""
        self._freed: set[Place] = set()
        self._waiting: set[Place] = set()
        """Places of attempts that wait for a batch in their sessions."""
        self.aside = Aside()
        """Attempts that wait for a batch and hold nothing."""
        self._regaining: deque[tuple[Place, asyncio.Future[bool]]] = deque()
        self.begun = asyncio.Event()
        """Set once the first places are taken, or nothing is to be attempted."""
        self._filled = WAVE
        """Places that may be taken by now."""
        self._is_filling = False
        self._wake: asyncio.Task[None] | None = None
        self._held = ""
        self._num_started = 0
        self._again: deque[Attempt] = deque()
        """Attempts that come before those of the source."""
        self.holds: set[str] = set()
        """Why nothing more may start for now, if anything is in it; attempts in flight go on."""
        self._stopping = False
        self._is_patient = True
        """Whether attempts may wait for batches."""
        self._exhausted = False

    @property
    def in_flight(self) -> int:
        """Attempts that hold a place; parked ones, and those that wait for a batch, do not."""
        return len(self.slots) - len(self._freed) - len(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Attempts that wait for a batch."""
        return len(self._waiting) + self.aside.number

    @property
    def is_paused(self) -> bool:
        """Whether nothing more may start for now."""
        return bool(self.holds)

    @property
    def num_begun(self) -> int:
        """Attempts that have begun."""
        return self._num_started

    @property
    def may_begin_more(self) -> bool:
        """Whether an attempt could begin if there were a place for it."""
        is_held = self._wake is not None and not self._wake.done()
        if self.is_paused or is_held:
            return False
        return bool(self._again or self._regaining) or self._may_begin()

    @property
    def num_parked(self) -> int:
        return len(self._freed)

    @property
    def num_settled(self) -> int:
        """Attempts in the order of their start, up to the first that has not ended."""
        return next(iter(self.slots.values())).place.number if self.slots else self._num_started

    def stages(self) -> Counter[str]:
        """What attempts in flight, and those that may not begin yet, wait for."""
        held = self._held if self._wake is not None and not self._wake.done() else ""
        found = Counter([slot.place.stage for slot in self.slots.values()] + [held] * bool(held))
        return found + self.aside.stages()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing goes on but the wait for a place."""
        waiting = sum(not given.done() for _, given in self._regaining)
        return len(self.slots) == waiting and not self._ready

    def start_again(self, attempt: Attempt) -> None:
        """Attempt this before anything new, unless nothing more may start."""
        if not self._stopping:
            self._again.append(attempt)
            self._hand()

    def hand_in(self, outcome: Outcome) -> None:
        """Keep an outcome of an attempt that is not in flight any more."""
        self._keep([outcome])

    def refresh(self) -> None:
        """Look again at the limit, and at `holds`."""
        self._hand()

    def stop(self, *, is_patient: bool = False) -> None:
        """Start nothing more; attempts in flight may finish. If patient, so may those that wait for
        batches, which are paid for."""
        self._stopping = True
        self._exhausted = True
        self.holds.clear()
        self._again.clear()
        self._is_patient = is_patient
        if not is_patient:
            self.aside.close()
        while self._regaining:
            _, given = self._regaining.popleft()
            if not given.done():
                given.set_result(False)
        self._hand()

    def cancel(self) -> None:
        """Start nothing more and cancel what runs; responses in hand still come out, parked."""
        self.stop()
        for running in self.slots:
            running.cancel()

    def free(self, place: Place) -> None:
        if len(self._freed) < self._max_parked:
            self._freed.add(place)
            place.freed_at = perf_counter()
            self._hand()

    def wait(self, place: Place, *, is_waiting: bool) -> None:
        place.has_waited = True
        (self._waiting.add if is_waiting else self._waiting.discard)(place)
        self._hand()

    def hand_out(self, unverified: Unverified) -> None:
        self._keep([unverified])

    def store_turn(self, turn: StoredTurn) -> None:
        try:
            self._sink.append_turn(turn)
        except Exception as error:  # it ends the run, not the attempt
            self._hand((None, error))

    async def regain(self, place: Place) -> bool:
        """A place for a freed slot, before any new attempt; False once stopping."""
        if self._stopping or place not in self._freed:
            return not self._stopping
        given: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._regaining.append((place, given))
        self._hand()
        return await given

    async def batches(self) -> AsyncGenerator[Iterator[Outcome], None]:
        """Again and again the outcomes that there are by now, and the responses that were parked.
        Free places are filled once the next batch is asked for; it has what is left of this."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                pause = self._dispatch()
                if self._ready:
                    yield self._outcomes()
                elif pause is not None and pause.ready is None:
                    await asyncio.sleep(0)
                elif pause is None and not (
                    self.slots
                    or self._again
                    or self.is_paused
                    or self.aside.number
                    # other runs have all places for now
                    or (self._may_begin() and self._limit() < 1)
                ):
                    return
                else:
                    self._waiter = self._loop.create_future()
                    await self._waiter
        finally:
            if self._wake:
                self._wake.cancel()
            await cancel_all(self.slots)
            self.aside.close()

    def _hand(self, ready: "_Ready" = (None, None)) -> None:
        """Have `batches` look at this next."""
        self._ready.append(ready)
        if (waiter := self._waiter) is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _keep(
        self,
        outcomes: Sequence[Outcome],
        ended: Sequence[Running] = (),
    ) -> None:
        """Have the sink keep outcomes, those of attempts that have `ended` or those of none."""
        try:
            kept = self._sink.append_all(outcomes)
        except Exception as error:  # not all are on disk: it ends the run, not an attempt
            kept = [error] * len(outcomes)
        for found, running in zip_longest(kept, ended):
            self._hand((running, found))

    def _end(self, running: Running) -> None:
        """An attempt has ended. It is kept with all that end in this turn of the loop."""
        self._ended.append(running)
        if len(self._ended) == 1:
            self._loop.call_soon(self._keep_ended)

    def _keep_ended(self) -> None:
        ended, self._ended = self._ended, []
        outcomes: list[Outcome] = []
        kept: list[Running] = []
        for running in ended:
            slot, outcome = self.slots[running], None
            if running.cancelled():
                outcome = slot.withdraw(slot) if slot.withdraw else None
            elif (bug := running.exception()) is not None:
                self._hand((running, bug))
                continue
            elif isinstance(found := running.result(), PutAside):
                self._put_aside(found)
            else:
                outcome = found
                if not slot.place.has_waited:
                    self._measure(slot, outcome)
            if outcome is None:
                self._hand((running, None))
            else:
                outcomes.append(outcome)
                kept.append(running)
        self._keep(outcomes, kept)

    def _put_aside(self, found: PutAside) -> None:
        if self._is_patient:
            self.aside.add(found)

    def _outcomes(self) -> Iterator[Outcome]:
        ready, slots, freed = self._ready, self.slots, self._freed
        while ready:
            running, found = ready.popleft()
            if running is not None:
                place = slots.pop(running).place
                freed.discard(place)
                self._waiting.discard(place)
            if isinstance(found, BaseException):
                raise found
            if found is not None:
                yield found

    def _dispatch(self) -> Later | None:
        """Fill the free places; Later if the source asked for a pause."""
        if self.is_paused:
            self.begun.set()
            return None
        limit, in_flight = self._limit(), self.in_flight
        while self._regaining and in_flight < limit:
            place, given = self._regaining.popleft()
            if not given.done():
                in_flight += 1
                self._freed.discard(place)
                place.freed_at = None
                given.set_result(True)
        aside = self.aside
        while in_flight < limit and (self._again or aside.is_ready or self._may_begin()):
            if in_flight >= self._filled:
                self._fill_on(limit)
                break
            found = self._again.popleft() if self._again else aside.next() or self._source.next()
            if isinstance(found, Attempt):
                in_flight += 1
                self._begin(found, in_flight)
            elif isinstance(found, Later):
                if found.ready is not None:
                    self._wake_after(found.ready, found.what)
                return found
            else:
                self._exhausted = True
        self.begun.set()
        return None

    def _may_begin(self) -> bool:
        """Whether an attempt of the source may begin."""
        return not self._exhausted and len(self.slots) + self.aside.number < self._room()

    def _begin(self, attempt: Attempt, in_flight: int) -> None:
        place = _Place(self._num_started)
        place.schedule = self
        slot = Slot(
            place,
            attempt=attempt,
            is_stored=attempt.stored is not None,
            in_flight=in_flight,
            began=perf_counter(),
        )
        self._num_started += 1
        running = self._work(attempt, slot)
        self.slots[running] = slot
        running.add_done_callback(self._end)

    def _wake_after(self, ready: asyncio.Event, what: str) -> None:
        async def wake() -> None:
            await ready.wait()
            self._hand()

        self.begun.set()
        if self._wake is None or self._wake.done():
            self._wake, self._held = asyncio.create_task(wake()), what

    def _fill_on(self, limit: int) -> None:
        """Fill the places for the first time in waves, at a third of the possible speed.

        Requests that are sent together are answered together, and the model would be idle while
        all those answers are worked on.
        """
        if self._is_filling:
            return
        self._is_filling = True
        loop, began = asyncio.get_running_loop(), self._cpu_time()

        def next_wave() -> None:
            self._is_filling = False
            self._filled = min(self._filled + WAVE, limit)
            self._hand()

        # it runs once the dispatched attempts have taken their steps up to the model
        when_quiet(lambda: loop.call_later(PAUSE * (self._cpu_time() - began), next_wave))


class _Place(Place):
    """A place of a schedule."""

    __slots__ = ("schedule",)

    schedule: Schedule

    def hand_out(self, unverified: Unverified) -> None:
        self.schedule.hand_out(unverified)

    def store_turn(self, turn: StoredTurn) -> None:
        self.schedule.store_turn(turn)

    def free(self) -> None:
        self.schedule.free(self)

    async def regain(self) -> bool:
        return await self.schedule.regain(self)

    def wait(self, *, is_waiting: bool) -> None:
        self.schedule.wait(self, is_waiting=is_waiting)


_Ready = tuple[Running | None, Outcome | BaseException | None]
"""An attempt that has ended, and what came of it; (None, None) is a wake-up."""
