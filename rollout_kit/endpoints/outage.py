"""An endpoint that is gone for a while: one request looks for it, and the others wait.

So an outage costs time, and uses up nobody's tries. Only one that has answered before is waited
for: where nobody ever did, the address is most likely wrong.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from copy import copy
from typing import TypeVar

from ..errors import RolloutError
from ..time_limit import within
from ..transport.retry import ENDPOINT_PROBE, delay_s

log = logging.getLogger(__name__)

T = TypeVar("T")

ENOUGH = 5
"""So many requests in a row must find nobody: fewer may be a hiccup."""

GONE = frozenset({502, 503, 504})
"""Statuses of a gateway that has nobody behind it."""


class Outage:
    """Of one endpoint, which is called `name` in the log."""

    def __init__(self, name: str) -> None:
        self.is_on = False
        self._name = name
        self._has_answered = False
        self._num_failed = 0
        self._since = 0.0
        self._error = RolloutError(f"{name} is gone")
        self._probes = 0
        self._looking = asyncio.Lock()

    async def through(
        self,
        work: Callable[[], Awaitable[T]],
        left: Callable[[], float],
        lost: Callable[[float], None],
    ) -> T:
        """What `work` comes to. Where it finds nobody it is tried again, in turns with all others,
        for as many seconds as are `left`. `lost` is told the seconds of each wait."""
        if not self.is_on:
            try:
                return await work()
            except RolloutError:
                if not self.is_on:
                    raise
        now = asyncio.get_running_loop().time
        ends = now() + left()
        while True:
            looks = self.is_on and await self._may_look(ends, lost)
            try:
                return await work()
            except RolloutError:
                if not self.is_on or now() >= ends:
                    raise
            finally:
                if looks:
                    self._looking.release()

    async def _may_look(self, ends: float, lost: Callable[[float], None]) -> bool:
        """Wait for the turn to look, which is then to be released; False where the endpoint came
        back meanwhile."""
        now = asyncio.get_running_loop().time
        came = now()
        try:
            with within(ends - came):
                await self._looking.acquire()
        except TimeoutError:
            raise copy(self._error) from None
        finally:
            lost(now() - came)
        looks = False
        try:
            if self.is_on:
                self._probes += 1
                pause_s = max(
                    delay_s(ENDPOINT_PROBE, self._probes), self._error.retry_after_s or 0.0
                )
                if now() + pause_s > ends:
                    raise copy(self._error)
                await asyncio.sleep(pause_s)
                lost(pause_s)
                looks = True
        finally:
            if not looks:
                self._looking.release()
        return looks

    def answered(self, sent_at: float) -> None:
        """Somebody is there, whatever the answer; `sent_at` is the loop's time."""
        if self.is_on and sent_at < self._since:
            return  # it was on its way when the others found nobody
        self._has_answered, self._num_failed = True, 0
        if self.is_on:
            self.is_on = False
            log.warning("%s answers again, after %.0f s", self._name, self._gone_s())

    def failed(self, error: RolloutError) -> None:
        """Nobody is there, or only a gateway."""
        self._num_failed += 1
        self._error = error
        if self._has_answered and self._num_failed >= ENOUGH and not self.is_on:
            self.is_on, self._since = True, asyncio.get_running_loop().time()
            self._probes = 0
            log.warning("%s is gone, and is waited for: %s", self._name, error.message)

    def _gone_s(self) -> float:
        return asyncio.get_running_loop().time() - self._since
