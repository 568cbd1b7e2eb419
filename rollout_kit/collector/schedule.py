"""Attempts in, outcomes out as they finish: never more than `limit()` in flight, and always as
many.

O(1) per completion, whatever the number in flight.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from time import perf_counter, thread_time

from ..session import Spent
from ..types import Attempt, Outcome, Unverified

WAVE = 16
"""Attempts that are started at a stretch."""

PAUSE = 2
"""After it, in times of the CPU that it took."""


class Slot:
    """One attempt's place among those in flight. `stage` says what it is waiting for."""

    __slots__ = ("_schedule", "earlier_usd", "freed_at", "limited_s", "parked", "spent", "stage")

    def __init__(self, schedule: "Schedule") -> None:
        self._schedule = schedule
        self.parked: Unverified | None = None
        self.stage = "starting"
        self.freed_at: float | None = None
        """When the place was given to others, by `perf_counter`."""
        self.limited_s = 0.0
        """What earlier attempts and the pauses after them took because of a rate limit."""
        self.spent = Spent()
        """By the attempt and those before it."""
        self.earlier_usd: float | None = 0.0
        """What the response has cost that an earlier run left; None where that is not known."""

    @property
    def cost_usd(self) -> float | None:
        """What the rollout has cost by now; None where that is not known."""
        if self.earlier_usd is None or self.spent.unpriced:
            return None
        return round(self.earlier_usd + self.spent.usd, 9)

    def keep(self, unverified: Unverified) -> None:
        """Hand the response out now, to be put on disk.

        From here on the attempt is about this response, unless `regain` allows another.
        """
        if self.parked is None:
            self.parked = unverified
            self._schedule.hand_out(unverified)

    def park(self, unverified: Unverified) -> None:
        """The same and, unless too many verdicts are out already, free the place."""
        self.keep(unverified)
        if self.parked is unverified:  # one that an earlier run left keeps its place
            self._schedule.free(self)

    async def regain(self) -> bool:
        """Wait for a place to attempt anew what was parked; False when nothing more may start."""
        if await self._schedule.place(self):
            self.parked = None
            return True
        return False


class Schedule:
    """Runs attempts; iterate over `outcomes()` to drive it.

    `attempts` may yield None where finding the next one takes long, so that others get their turn.
    `keep` puts an outcome on disk, and returns it or what became of it. It is called in the very
    moment that the outcome is there: others that are ready too must not come in between.
    """

    def __init__(
        self,
        attempts: Iterator[Attempt | None],
        run: Callable[[Attempt, Slot], Awaitable[Outcome]],
        limit: Callable[[], int],
        max_parked: int = 1024,
        keep: Callable[[Outcome], Outcome] = lambda outcome: outcome,
    ) -> None:
        self._attempts = attempts
        self._run = run
        self._limit = limit
        self._keep = keep
        self._max_parked = max_parked
        self._ready: asyncio.Queue[_Ready] = asyncio.Queue()
        self._slots: dict[asyncio.Task[Outcome], Slot] = {}
        self._freed: set[Slot] = set()
        self._regaining: deque[tuple[Slot, asyncio.Future[bool]]] = deque()
        self.begun = asyncio.Event()
        """The first places are taken, or nothing is to be attempted."""
        self._filled = WAVE
        """Places that may be taken yet."""
        self._is_filling = False
        self._stopping = False
        self._exhausted = False

    @property
    def in_flight(self) -> int:
        """Attempts that hold a place; parked ones do not."""
        return len(self._slots) - len(self._freed)

    @property
    def num_parked(self) -> int:
        return len(self._freed)

    def waiting_for(self) -> Counter[str]:
        """What everything that runs is waiting for."""
        return Counter(slot.stage for slot in self._slots.values())

    def stop(self) -> None:
        """Start nothing more; what runs may finish."""
        self._stopping = True
        self._exhausted = True
        while self._regaining:
            _settle(self._regaining.popleft()[1], False)
        self._ready.put_nowait(None)

    def cancel(self) -> None:
        """Start nothing more and end what runs now; responses in hand still come out, parked."""
        self.stop()
        for task in self._slots:
            task.cancel()

    def free(self, slot: Slot) -> None:
        if len(self._freed) < self._max_parked:
            self._freed.add(slot)
            slot.freed_at = perf_counter()
            self._ready.put_nowait(None)

    def hand_out(self, unverified: Unverified) -> None:
        try:
            self._ready.put_nowait(self._keep(unverified))
        except Exception as error:  # the run's, and not that of the attempt that is parked
            self._ready.put_nowait(error)

    async def place(self, slot: Slot) -> bool:
        """A place for a slot that was freed, before any new attempt; False once stopping."""
        if self._stopping or slot not in self._freed:
            return not self._stopping
        given: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._regaining.append((slot, given))
        self._ready.put_nowait(None)
        return await given

    async def outcomes(self) -> AsyncGenerator[Outcome, None]:
        """Each attempt's outcome as it finishes, and each response as it is parked."""
        try:
            while True:
                looking = self._dispatch()
                if looking and self._ready.empty():
                    await asyncio.sleep(0)  # what is to be attempted takes long to find: let others
                    continue
                if not looking and not self._slots and self._ready.empty():
                    return
                if (outcome := self._outcome(await self._ready.get())) is not None:
                    yield outcome
        finally:
            for task in self._slots:
                task.cancel()
            await asyncio.gather(*self._slots, return_exceptions=True)

    async def _attempted(self, attempt: Attempt, slot: Slot) -> Outcome:
        return self._keep(await self._run(attempt, slot))

    def _outcome(self, ready: "_Ready") -> Outcome | None:
        if isinstance(ready, Exception):
            raise ready
        if not isinstance(ready, asyncio.Task):
            return ready
        self._freed.discard(self._slots.pop(ready))
        return None if ready.cancelled() else ready.result()

    def _dispatch(self) -> bool:
        """Fill the free places; True when the attempts asked for a pause before the next one."""
        while self._regaining and self.in_flight < self._limit():
            slot, given = self._regaining.popleft()
            if not given.done():
                self._freed.discard(slot)
                slot.freed_at = None
                given.set_result(True)
        while not self._exhausted and self.in_flight < (limit := self._limit()):
            if self.in_flight >= self._filled:
                self._fill_on(limit)
                break
            try:
                attempt = next(self._attempts)
            except StopIteration:
                self._exhausted = True
                break
            if attempt is None:
                return True
            slot = Slot(self)
            task = asyncio.ensure_future(self._attempted(attempt, slot))
            self._slots[task] = slot
            task.add_done_callback(self._ready.put_nowait)
        self.begun.set()
        return False

    def _fill_on(self, limit: int) -> None:
        """The places are filled for the first time in waves, a third as fast as they could be.

        Requests that go out together are answered together, and while all that is worked through
        the model has little to do, time after time.
        """
        if self._is_filling:
            return
        self._is_filling = True
        loop, began = asyncio.get_running_loop(), thread_time()

        def next_wave() -> None:
            self._is_filling = False
            self._filled = min(self._filled + WAVE, limit)
            self._ready.put_nowait(None)

        # when it is called, what was dispatched has taken its first steps
        loop.call_soon(lambda: loop.call_later(PAUSE * (thread_time() - began), next_wave))


_Ready = asyncio.Task[Outcome] | Outcome | Exception | None
"""An attempt that has ended, a response that is parked, why it could not be, or just a nudge."""


def _settle(given: "asyncio.Future[bool]", answer: bool) -> None:
    if not given.done():
        given.set_result(answer)
