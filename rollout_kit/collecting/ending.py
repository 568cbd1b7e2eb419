"""How a run ends: with all that was asked, at a limit, by a person's word, or with an error.

Limits on money, tokens and time count per run, so the command that a run prints continues it
without changes.
"""

import asyncio
from enum import Enum

from ..config.keys import LimitsConfig
from ..errors import OutputError, StopRun
from ..types import Say
from .groups.following import GroupFollower
from .groups.scoring import GroupScoring
from .pacing.budget import Budget
from .schedule import Schedule


class Ending(Enum):
    """How a run has ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    LIMIT = "limit"


class RunEnd:
    """Ends a run. Some parts of the run are made with methods of this object, so it gets the parts
    afterwards, by `set_parts`."""

    def __init__(self, drain_timeout_s: float, say: Say) -> None:
        self.kind = Ending.DONE
        self.num_left_waiting = 0
        """Rollouts that waited for batches when a person stopped the run."""
        self._error: StopRun | OutputError | None = None
        self._drain_timeout_s, self._say = drain_timeout_s, say
        self._timer: asyncio.TimerHandle | None = None

    def set_parts(self, schedule: Schedule, groups: GroupFollower, scoring: GroupScoring) -> None:
        self._schedule, self._groups, self._scoring = schedule, groups, scoring

    def interrupt(self) -> None:
        """Let attempts in flight finish; called again, cancel them."""
        if self.kind is Ending.INTERRUPTED:
            self._cancel()
            return
        self.kind = Ending.INTERRUPTED
        self.num_left_waiting = self._schedule.num_waiting
        self._drain("", "; once more ends them at once", in_time=True)

    def reach_limit(self, why: str, *, in_time: bool) -> None:
        """End because of `why`. `in_time`: what is in flight has a limited time to end."""
        if self.kind is Ending.DONE:
            self.kind = Ending.LIMIT
            self._drain(f"{why}; ", "", in_time=in_time)

    def let_finish(self, error: OutputError) -> None:
        """End with an error; what is in flight may finish."""
        self._error = self._error or error
        self._drain("another program touched the output; ", "", in_time=True)

    def end_rollouts(self, error: StopRun | OutputError) -> None:
        """End with an error. Rollouts in flight are cancelled, verifications of groups are not."""
        self._error = error
        self._schedule.cancel()

    def fail(self, error: OutputError) -> None:
        """End with an error; what is in flight is cancelled."""
        self._error = self._error or error
        self._cancel()

    def raise_error(self) -> None:
        """Raise the error that ends the run, if there is one."""
        if self._error:
            raise self._error

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _drain(self, why: str, more: str, *, in_time: bool) -> None:
        """Start nothing more; in time, cancel after `drain_timeout_s`."""
        schedule = self._schedule
        number = schedule.in_flight + schedule.num_parked
        number += 0 if in_time else schedule.num_waiting
        limit = f", for up to {self._drain_timeout_s:g} s" if in_time else ""
        self._say(f"{why}stopping: {number} in flight may finish{limit}{more}")
        schedule.stop(is_patient=not in_time)
        if self.kind is not Ending.LIMIT:
            self._groups.stop()
        if in_time and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._drain_timeout_s, self._cancel)

    def _cancel(self) -> None:
        self._schedule.cancel()
        self._groups.stop()
        self._scoring.cancel()


class RunLimits:
    """The limits of one run on money, tokens and time; whatever reaches one ends the run."""

    def __init__(self, command: LimitsConfig, budget: Budget, say: Say, end: RunEnd) -> None:
        self.budget = budget
        self.max_minutes = command.max_minutes
        self._say, self._end = say, end
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_warned = False

    def start(self) -> None:
        """Start the clock; an estimate before this run may have spent it all."""
        self._began = asyncio.get_running_loop().time()
        self._set_timer()
        self.check()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def check(self) -> None:
        """End the run if its money or tokens are spent."""
        budget = self.budget
        if budget.is_open:
            return
        if budget.max_cost_usd and budget.total.spent.unpriced and not self._has_warned:
            self._has_warned = True
            self._say(
                "warning: the price of a model that is asked is not known, and max_cost_usd cannot"
                " count it: give its server `prices`"
            )
        if not budget.room():
            # attempts in flight are paid for already, so they may take their time
            self._end.reach_limit(budget.describe_reached(), in_time=False)

    def set_money(self, usd: float | None) -> None:
        self.budget.max_cost_usd = usd
        self.check()

    def set_tokens(self, tokens: int | None) -> None:
        self.budget.max_total_tokens = tokens
        self.check()

    def set_minutes(self, minutes: float | None) -> None:
        self.max_minutes = minutes
        self._set_timer()

    def _set_timer(self) -> None:
        self.stop()
        if self.max_minutes is not None:
            due = self._began + self.max_minutes * 60
            self._timer = asyncio.get_running_loop().call_at(due, self._end_in_time)

    def _end_in_time(self) -> None:
        self._end.reach_limit(f"max_minutes={self.max_minutes:g} are over", in_time=True)
