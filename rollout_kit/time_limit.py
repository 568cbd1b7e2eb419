"""Time limits that cost only two set operations, for thousands of calls per second.

They work like `asyncio.timeout`, but limits that end at about the same time share one timer of the
loop. A limit never ends early; it ends late by at most `GRAIN_S` or one per cent.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol

GRAIN_S = 1 / 32
"""About the jitter of a network."""

BEAT_S = 2.0
"""How often limits that are held are extended, by this much. The first time it is twice that, so
that the next one always comes in time."""

if sys.version_info >= (3, 12):
    current_task = asyncio.current_task
else:  # older versions have it in Python, and a rollout calls it fifteen times
    current_task = vars(asyncio.tasks)["_current_tasks"].get


class Extendable(Protocol):
    """Something that ends at a time."""

    def extend(self, seconds: float) -> None: ...

    def left(self) -> float:
        """Seconds until it ends; infinite for something without an end."""
        ...


class within:
    """Context that raises TimeoutError if the block takes longer than `seconds`; None = no limit.

    It is one of `limits` while it runs, so that others can extend it. Needs a running task. Blocks
    may nest; the one whose time is up raises.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_limits",
        "_seconds",
        "_task",
        "_was_cancelling",
        "struck",
        "was_renewed",
    )

    def __init__(self, seconds: float | None, limits: list[Extendable] | None = None) -> None:
        self._seconds, self._limits = seconds, limits
        self.struck = self.was_renewed = False

    def __enter__(self) -> "within":
        if self._limits is not None:
            self._limits.append(self)
        if self._seconds is not None:
            clock = self._clock = _clock()
            task = self._task = current_task(clock.loop)
            assert task is not None, "a time limit needs a task to cancel"
            self._was_cancelling = task.cancelling()
            self._due = clock.add(self, self._seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._limits is not None:
            self._limits.remove(self)
        if self._seconds is None:
            return
        if not self.struck:
            self._clock.discard(self, self._due)
            return
        # if someone else has cancelled the task too, that cancellation stays in force
        is_ours_alone = self._task.uncancel() <= self._was_cancelling
        if is_ours_alone and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError

    def hold(self) -> None:
        """Have no limit until `renew`."""
        if self._seconds is not None and not self.struck:
            self._clock.discard(self, self._due)

    def renew(self) -> None:
        """Restart the time limit now."""
        if self._seconds is not None and not self.struck:
            self._clock.discard(self, self._due)
            self._due = self._clock.add(self, self._seconds)
            self.was_renewed = True

    def extend(self, seconds: float) -> None:
        """End so much later."""
        if self._seconds is not None and not self.struck:
            left = self.left()
            self._clock.discard(self, self._due)
            self._due = self._clock.add(self, left + seconds)

    def left(self) -> float:
        if self._seconds is None:
            return inf
        return max(0.0, self._due * GRAIN_S - self._clock.loop.time())

    def strike(self) -> None:
        self.struck = True
        self._task.cancel()


class Due:
    """One of `limits` that ends nothing: it only tells how much time there is."""

    __slots__ = ("_at", "_loop")

    def __init__(self, seconds: float) -> None:
        self._loop = running_loop()
        self._at = self._loop.time() + seconds

    def extend(self, seconds: float) -> None:
        self._at += seconds

    def left(self) -> float:
        return max(0.0, self._at - self._loop.time())


def time_left(limits: Iterable[Extendable]) -> float:
    """Seconds until the first of the limits ends; infinite without any."""
    return min((limit.left() for limit in limits), default=inf)


def extend_all(limits: Iterable[Extendable], seconds: float) -> None:
    for limit in tuple(limits):
        limit.extend(seconds)


@contextmanager
def holding(limits: Iterable[Extendable]) -> Iterator[None]:
    """Context in which none of these limits ends."""
    loop = running_loop()

    def hold() -> None:
        nonlocal timer
        extend_all(limits, BEAT_S)
        timer = loop.call_later(BEAT_S, hold)

    extend_all(limits, 2 * BEAT_S)
    timer = loop.call_later(BEAT_S, hold)
    try:
        yield
    finally:
        timer.cancel()


class later:
    """Calls `strike` after `seconds`, with the precision of `within`. For timers that are nearly
    always cancelled."""

    __slots__ = ("_clock", "_due", "strike")

    def __init__(self, seconds: float, strike: Callable[[], None]) -> None:
        self.strike = strike
        self._clock = _clock()
        self._due = self._clock.add(self, seconds)

    def cancel(self) -> None:
        """Call this exactly once, even after `strike` was called."""
        self._clock.discard(self, self._due)
        del self.strike  # breaks a likely reference cycle


class _Clock:
    """The limits of one loop, grouped by the multiple of GRAIN_S at which they end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self._now = loop, loop.time
        self._limits: dict[int, set[within | later]] = {}
        self._ends: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, limit: within | later, seconds: float) -> int:
        step = _step(seconds)
        due = ceil((self._now() + seconds) / (GRAIN_S * step)) * step
        if (limits := self._limits.get(due)) is None:
            self._limits[due] = {limit}
            heappush(self._ends, due)
            if self._ends[0] == due:
                self._arm()
        else:
            limits.add(limit)
        return due

    def discard(self, limit: within | later, due: int) -> None:
        if (limits := self._limits.get(due)) is not None:
            limits.discard(limit)

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._ends[0] * GRAIN_S, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self.loop.time()
        while self._ends and self._ends[0] * GRAIN_S <= now:
            for limit in self._limits.pop(heappop(self._ends)):
                limit.strike()
        if self._ends:
            self._arm()


@lru_cache(maxsize=256)
def _step(seconds: float) -> int:
    """Multiple of GRAIN_S to which the end of such a limit is rounded; 4 s for 600 s."""
    return 1 << (int(seconds / GRAIN_S) >> 8).bit_length()


_of_thread = threading.local()
os.register_at_fork(after_in_child=lambda: _of_thread.__dict__.clear())


def running_loop() -> asyncio.AbstractEventLoop:
    """The running event loop, inside a task.

    Before Python 3.12 `asyncio.get_running_loop` makes a system call each time, which took 9 % of
    the CPU time of a rollout.
    """
    clock = getattr(_of_thread, "clock", None)
    if clock is not None and current_task(clock.loop) is not None:
        return clock.loop
    return asyncio.get_running_loop()


def _clock() -> _Clock:
    """That of the running loop."""
    clock = getattr(_of_thread, "clock", None)
    if clock is None or current_task(clock.loop) is None:
        loop = asyncio.get_running_loop()
        if clock is None or clock.loop is not loop:
            clock = _of_thread.clock = _Clock(loop)
    return clock


@dataclass(slots=True, eq=False)
class HeldTime:
    """Time in which a model's weights changed; it counts for no limit."""

    seconds: float = 0.0

    def extend(self, seconds: float) -> None:
        self.seconds += seconds

    def left(self) -> float:
        return inf
