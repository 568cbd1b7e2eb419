"""The caller of the request that is being answered. Work for a caller that is gone is dropped.

A caller is gone if its connection has ended or its deadline has passed. The end of a connection
cancels the work. A server that was stopped for a while learns of it late, so the work also looks
each time before it sends a request of its own.
"""

import asyncio
import os
import select
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from math import inf
from pathlib import Path

from ...errors import PeerTimeout

HEADER = "x-rollout-deadline"
"""Name of the HTTP header with the time at which the caller stops waiting."""

HELD_HEADER = "x-rollout-held"
"""Name of the header of an interim reply (102): wait so many seconds longer, as the weights of a
model change. So a caller need not know which server pauses, nor ask it."""

HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""Poll event of a connection that the other side has ended; only Linux has it."""


class Caller:
    """Waits for the current task. `has_left()` tells whether its connection has ended; `tell` tells
    it to wait longer, if it can be told."""

    __slots__ = ("_task", "_tell", "deadline", "has_left", "is_gone")

    def __init__(
        self,
        deadline: float,
        has_left: Callable[[], bool],
        tell: Callable[[float], object] | None = None,
    ) -> None:
        self.deadline, self.has_left, self._tell = deadline, has_left, tell
        self._task = asyncio.current_task()
        self.is_gone = False

    def leave(self) -> None:
        """Cancel the work: the connection has ended."""
        self.is_gone, self.has_left = True, _is_here
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """The work is done; tasks that it has left running are no longer for this caller."""
        self.deadline, self.has_left, self._task, self._tell = inf, _is_here, None, None

    def extend(self, seconds: float) -> None:
        """Have it wait so much longer, and all who wait for it."""
        self.deadline += seconds
        if self._tell:
            self._tell(seconds)

    def left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    async def check(self) -> None:
        """Raise CancelledError or PeerTimeout if the caller is gone."""
        if time.monotonic() >= self.deadline:
            raise PeerTimeout("the caller's deadline has passed", retryable=False)
        if self.has_left():
            if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
                self.leave()
                await asyncio.sleep(0)
            raise PeerTimeout("the caller has left", retryable=False)


def _is_here() -> bool:
    return False


def is_hung_up(descriptor: int) -> bool:
    """Whether the other side of a connection has ended it, even if that was not read yet."""
    poller = select.poll()
    poller.register(descriptor, HUNG_UP)
    return bool(poller.poll(0))


_current: ContextVar[Caller | None] = ContextVar("caller", default=None)

current_caller = _current.get
"""The caller that the running code works for; None outside of a request over HTTP."""


def begin_work_for(caller: Caller) -> None:
    """Have the rest of the running task work for `caller`."""
    _current.set(caller)


def deadline_header(timeout_s: float) -> str:
    """The deadline of a request sent now; it is not after that of the own caller. It is a time of
    the monotonic clock, because wall clocks differ and jump."""
    deadline, caller = time.monotonic() + timeout_s, _current.get()
    if caller is not None and caller.deadline < deadline:
        deadline = caller.deadline
    return f"{deadline:.3f} {_clock_name()}"


def read_deadline(header: str) -> float:
    """The deadline on the clock of this process; infinite if the header names another clock."""
    seconds, _, clock = header.partition(" ")
    try:
        return float(seconds) if clock == _clock_name() else inf
    except ValueError:
        return inf


@cache
def _clock_name() -> str:
    """Identifies the monotonic clock: processes of one machine share it, other machines do not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        return os.uname().nodename
