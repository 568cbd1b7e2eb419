"""An endpoint that is down for a while: one request probes it, and the others wait.

An outage therefore costs time and uses up no tries. It is declared only for an endpoint that has
answered before; if it never did, the address is most likely wrong and the error rises at once.
Failures of one row are no outage if the endpoint answers a plain GET: then the row is the cause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from copy import copy
from typing import TypeVar

from ...errors import RolloutError
from ...time_limit import within
from ..transport.retry import ENDPOINT_PROBE, delay_s

log = logging.getLogger(__name__)

T = TypeVar("T")

ENOUGH = 5
"""Requests in a row that must fail before an outage is declared."""

SEVERAL = 3
"""Rows that must fail; fewer may be the cause themselves, so the endpoint is asked."""

GONE = frozenset({502, 503, 504})
"""Statuses of a gateway that cannot reach its server."""


class Outage:
    """State of one endpoint; `name` is its name in the log, `answers` asks it without a row."""

    def __init__(self, name: str, answers: Callable[[], Awaitable[bool]]) -> None:
        self.is_on = False
        self._answers = answers
        self._rows: set[Hashable] = set()
        """Rows that failed since the last answer."""
        self._is_row = False
        """Whether the endpoint answered while a row failed."""
        self._name = name
        self._has_answered = False
        self._num_failed = 0
        self._since = 0.0
        self._error = RolloutError(f"{name} is down")
        self._probes = 0
        self._probing = asyncio.Lock()

    async def call(
        self,
        work: Callable[[], Awaitable[T]],
        left: Callable[[], float],
        lost: Callable[[float], None],
        failed: RolloutError | None = None,
    ) -> T:
        """Return the result of `work`. During an outage, retry it, taking turns with other callers.

        `left()` is the time (s) that the caller still has. `lost` receives the seconds of each
        wait. `failed` is the error of a first try that the caller has made itself. Raises the error
        of `work`, or that of the outage if the time is too short.
        """
        if failed is not None or not self.is_on:
            try:
                if failed is not None:
                    raise failed
                return await work()
            except RolloutError:
                if not self.is_on and not await self._is_found_down():
                    raise
        now = asyncio.get_running_loop().time
        ends = now() + left()
        while True:
            probes = self.is_on and await self._wait_for_probe(ends, lost)
            try:
                return await work()
            except RolloutError:
                if not self.is_on or now() >= ends:
                    raise
            finally:
                if probes:
                    self._probing.release()

    async def _wait_for_probe(self, ends: float, lost: Callable[[float], None]) -> bool:
        """Return True, holding the lock, when the caller may probe; False if the outage is over."""
        now = asyncio.get_running_loop().time
        came = now()
        try:
            with within(ends - came):
                await self._probing.acquire()
        except TimeoutError:
            raise copy(self._error) from None
        finally:
            lost(now() - came)
        probes = False
        try:
            if self.is_on:
                self._probes += 1
                pause_s = self._pause_s(ends - now())
                if now() + pause_s > ends:
                    raise copy(self._error)
                await asyncio.sleep(pause_s)
                lost(pause_s)
                probes = True
        finally:
            if not probes:
                self._probing.release()
        return probes

    def _pause_s(self, left_s: float) -> float:
        """Pause before the next probe. A caller whose time is short still asks once before it ends:
        the endpoint may have come back since the last probe."""
        grown_s = delay_s(ENDPOINT_PROBE, self._probes)
        pause_s = min(grown_s, max(ENDPOINT_PROBE.base_s, left_s / 2))
        return max(pause_s, self._error.retry_after_s or 0.0)

    def record_answer(self, sent_at: float) -> None:
        """The endpoint sent a reply of any kind; `sent_at` is the loop's time of the request."""
        if self.is_on and sent_at < self._since:
            return  # the request was sent before the outage began
        self._has_answered, self._num_failed, self._is_row = True, 0, False
        self._rows.clear()
        if self.is_on:
            self.is_on = False
            log.warning("%s answers again, after %.0f s", self._name, self._down_s())

    def record_failure(self, error: RolloutError, row: Hashable, *, is_sent: bool) -> None:
        """The endpoint could not be reached, or only its gateway. `is_sent`: whether the request
        may have reached it, so that its row may be the cause."""
        self._num_failed += 1
        self._error = error
        self._rows.add(row)
        if self._is_suspect() and (len(self._rows) >= SEVERAL or not is_sent):
            self._declare()

    def _is_suspect(self) -> bool:
        return self._has_answered and self._num_failed >= ENOUGH and not self.is_on

    async def _is_found_down(self) -> bool:
        """Whether the endpoint does not answer at all; asked once for each series of failures."""
        if self._is_suspect() and not self._is_row:
            self._is_row = await self._answers()
            if self._is_suspect() and not self._is_row:
                self._declare()
        return self.is_on

    def _declare(self) -> None:
        self.is_on, self._since = True, asyncio.get_running_loop().time()
        self._probes = 0
        log.warning("%s is down; waiting until it answers: %s", self._name, self._error.message)

    def _down_s(self) -> float:
        return asyncio.get_running_loop().time() - self._since
