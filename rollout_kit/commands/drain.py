"""What ends a run before its work is done: Ctrl-C and SIGTERM, and the limits that it was given.

Nothing more is started then, and what is in flight may finish. A second Ctrl-C ends it at once.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from ..collector.schedule import Schedule
from ..config.keys.commands import RolloutsCommand
from ..pacing.budget import Budget


class End(Enum):
    """How a run has ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    LIMIT = "limit"


@dataclass(slots=True)
class Draining:
    """Stops `schedule` when it is asked to, or when a limit is reached."""

    schedule: Schedule
    command: RolloutsCommand
    budget: Budget | None
    say: Callable[[str], None]
    end: End = End.DONE
    _timers: list[asyncio.TimerHandle] = field(default_factory=list)
    _is_warned: bool = False

    def interrupted(self) -> None:
        if self.end is End.INTERRUPTED:
            self.schedule.cancel()
            return
        self.end = End.INTERRUPTED
        self._drain("", "; once more ends them at once", in_time=True)

    def check(self) -> None:
        """Another rollout has ended: is there room for more?"""
        if self.budget is None or self.end is not End.DONE:
            return
        if self.budget.max_cost_usd and self.budget.bill.spent.unpriced and not self._is_warned:
            self._is_warned = True
            self.say(
                "warning: the price of a model that is asked is not known, and max_cost_usd cannot"
                " count it: give its server `prices`"
            )
        if not self.budget.room():
            self.end = End.LIMIT
            # what is in flight is paid for already: it may take its time
            self._drain(f"{self.budget.reached()}; ", "", in_time=False)

    def start_clock(self) -> None:
        """`max_minutes` begin."""
        if self.command.max_minutes is not None:
            self._after(self.command.max_minutes * 60, self._time_is_up)

    def stop_clock(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _time_is_up(self) -> None:
        if self.end is End.DONE:
            self.end = End.LIMIT
            self._drain(f"max_minutes={self.command.max_minutes:g} are over; ", "", in_time=True)

    def _drain(self, why: str, more: str, *, in_time: bool) -> None:
        number = self.schedule.in_flight + self.schedule.num_parked
        limit = f", for up to {self.command.drain_timeout_s:g} s" if in_time else ""
        self.say(f"{why}stopping: {number} in flight may finish{limit}{more}")
        self.schedule.stop()
        if in_time:
            self._after(self.command.drain_timeout_s, self.schedule.cancel)

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, then))


@contextmanager
def draining(
    schedule: Schedule,
    command: RolloutsCommand,
    budget: Budget | None,
    say: Callable[[str], None],
) -> Iterator[Draining]:
    """Signals and limits stop `schedule` while inside: what is in flight may finish for
    `drain_timeout_s`."""
    loop = asyncio.get_running_loop()
    found = Draining(schedule, command, budget, say)
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, found.interrupted)
    found.start_clock()
    found.check()  # a canary may have spent it all
    try:
        yield found
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        found.stop_clock()
