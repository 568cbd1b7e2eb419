"""How long one request has waited for its answer, and may be throttled; an endpoint that lets no
request pass; and requests that wait for the first one of their task."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ...errors import THROTTLED, ModelError, RolloutError
from ...session import current_session
from ...time_limit import running_loop, within
from .rate_limit import RequestQueue

log = logging.getLogger(__name__)

REPORT_EVERY_S = 60.0
"""Between two reports of an endpoint that throttles every request."""

REPORT_AFTER_S = 30.0
"""A rate limit that lets requests pass sooner than this is not reported."""


def record_lost_time(error: RolloutError | None, seconds: float) -> None:
    """Add time that was not the model's to the session's statistics: time lost to `error`, or to
    an endpoint that is down (None)."""
    if session := current_session():
        is_limited = error is not None and error.status in THROTTLED
        session.lose("rate_limit_s" if is_limited else "retry_s", seconds)


def lose_to_outage(seconds: float) -> None:
    record_lost_time(None, seconds)


class Throttling:
    """Reports to the log that an endpoint throttles every request."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._since: float | None = None
        """Time of the first refusal since the last answer."""
        self._next_report = 0.0

    def record_answer(self) -> None:
        self._since = None

    def record_refusal(self, error: RolloutError, now: float) -> None:
        self._since = now if self._since is None else self._since
        asked_s = error.retry_after_s or 0.0
        if max(asked_s, now - self._since) < REPORT_AFTER_S or now < self._next_report:
            return
        self._next_report = now + REPORT_EVERY_S
        asks = f"; it asks to wait for {asked_s:g} s" if asked_s else ""
        log.warning("%s: the rate limit lets no request pass: %s%s", self._name, error, asks)


class Waited:
    """A clock that stops while a streamed answer arrives and while the endpoint throttles, so that
    it measures waiting for answers only."""

    def __init__(
        self, now: Callable[[], float], max_throttled_s: float, queue: RequestQueue
    ) -> None:
        self.left_throttled_s = max_throttled_s
        """Seconds for which the request may still be throttled."""
        self.refused: RolloutError | None = None
        """The last refusal because of a rate limit."""
        self._queue, self._number = queue, queue.number()
        self._max_throttled_s = max_throttled_s
        self.expected = 0.0
        """Tokens that the queue has reserved for the next try."""
        self._now = now
        self._came_s = 0.0
        self._heard_at: float | None = None

    def __call__(self) -> float:
        return self._now() - self._came_s

    @property
    def refusal(self) -> RolloutError:
        """What a request ends with that was throttled for too long."""
        why = f"the rate limit let no request pass for {self._max_throttled_s:g} s"
        return self.refused or ModelError(why, status=429)

    def lose(self, error: RolloutError, seconds: float) -> None:
        """Record the time of a try that failed and of its pause; raise the error of a request that
        was throttled for too long."""
        record_lost_time(error, seconds)
        if error.status in THROTTLED:
            self.skip(seconds)
            self.refused = error
            if not self.left_throttled_s:
                raise error

    async def wait_turn(self) -> None:
        """Wait until the request may be sent."""
        expected = self._queue.send_now(running_loop().time())
        if expected is None:
            expected = await self._wait_in_queue()
        self.expected = expected

    async def _wait_in_queue(self) -> float:
        came = self._now()
        try:
            with within(self.left_throttled_s):
                return await self._queue.wait(self._number)
        except TimeoutError:
            raise self.refusal from None
        finally:
            waited_s = self._now() - came
            self.skip(waited_s)
            if session := current_session():
                session.lose("rate_limit_s", waited_s)

    def skip(self, seconds: float) -> None:
        """Leave out time that was lost to a rate limit."""
        self._came_s += seconds
        self.left_throttled_s = max(0.0, self.left_throttled_s - seconds)

    def begin(self) -> None:
        """A new try begins; nothing has arrived yet."""
        self._heard_at = None

    def hear(self) -> None:
        """A piece of the answer has arrived."""
        at = self._now()
        if self._heard_at is not None:
            self._came_s += at - self._heard_at
        self._heard_at = at


NUM_REMEMBERED = 100_000
"""Tasks whose prompt is known to be cached: more than are ever in flight."""


class FirstOfTask:
    """One rollout of a task asks first; its repeats follow once the endpoint has the prompt.

    Providers sell a cached prompt at a tenth of the price, but only after a first request has
    written it to the cache. Eight repeats that ask at the same time pay for it eight times.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Future[None] | None] = OrderedDict()
        """None: the answer has begun."""

    @asynccontextmanager
    async def following(self, task: str) -> AsyncIterator[None]:
        """Context of a request for a task. If another one leads, wait until its answer has begun;
        if that one fails, lead instead."""
        while (leader := self._tasks.get(task)) is not None:
            await asyncio.wait([leader])
        if task in self._tasks:
            yield
            return
        leader = self._tasks[task] = asyncio.get_running_loop().create_future()
        try:
            yield
        except BaseException:
            if self._tasks.get(task) is leader:
                del self._tasks[task]
            raise
        else:
            self.begin(task)
        finally:
            if not leader.done():
                leader.set_result(None)

    def begin(self, task: str) -> None:
        """The answer to the leader of a task has begun."""
        if (leader := self._tasks.get(task)) is not None:
            self._tasks[task] = None
            leader.set_result(None)
            if len(self._tasks) > NUM_REMEMBERED:
                self._forget()

    def _forget(self) -> None:
        name = next((name for name, leader in self._tasks.items() if leader is None), None)
        if name is not None:
            del self._tasks[name]
