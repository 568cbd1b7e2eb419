"""The limits of one run on money, tokens and time; whatever reaches one ends the run.

They count per run, so the command that a run prints continues it without changes.
"""

import asyncio
from typing import Protocol

from ..config.keys import LimitsConfig
from ..types import Say
from .pacing.budget import Budget


class EndRun(Protocol):
    """Ends the run, because of `why`. `in_time`: what is in flight has a limited time to end."""

    def __call__(self, why: str, *, in_time: bool) -> None: ...


class RunLimits:
    """`end` is called when a limit is reached."""

    def __init__(self, command: LimitsConfig, budget: Budget, say: Say, end: EndRun) -> None:
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
        """EndRun the run if its money or tokens are spent."""
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
            self._end(budget.describe_reached(), in_time=False)

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
        self._end(f"max_minutes={self.max_minutes:g} are over", in_time=True)
