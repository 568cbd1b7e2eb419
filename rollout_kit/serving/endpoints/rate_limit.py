"""How fast one endpoint may be asked.

`Allowances` is a pure state machine: configured limits, the endpoint's headers and its refusals
determine a pace. `RequestQueue` sends requests at that pace, in the order of their arrival. After a
refusal all requests wait, so that they are not refused one by one.
"""

import asyncio
import heapq
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...time_limit import running_loop
from .refusals import duration_s

HEADROOM = 0.97
"""Share of the allowed pace to use, because clocks differ and requests overtake each other."""

BURST_S = 1.0
"""A bucket holds the requests or tokens of this many seconds."""

UNTOLD_PAUSE_S = 1.0
"""Pause after a refusal that names no time; doubled after each further refusal in a row."""

MAX_PAUSE_S = 60.0

CUT = 0.8
"""Factor on a pace that was refused, if the endpoint names no limit."""

GROWTH, GROWTH_EVERY_S = 1.03, 5.0
"""Factor by which the request rate grows, once in this many seconds, while nothing is refused."""

FAST_GROWTH, CALM_S = 1.2, 60.0
"""Factor after this many seconds (s) without a refusal."""

MANY = 0.15
"""With a larger share of refused requests, the pace is always regarded as the cause."""

ENOUGH = 3
"""Refusals after a cut that are needed to judge whether the cut helped."""

HEADER_PREFIX = "x-ratelimit-"
"""Prefix of the reply headers that name the endpoint's limits."""

LONGEST_RESET_S = 61.0
"""A limit of a minute is free again within this time (s)."""

IN_SPITE, FORGIVEN = 3, 0.05
"""So many refusals refute a limit in the headers; each answer takes this part of one back."""

UNITS = ("requests", "tokens")


@dataclass(slots=True)
class Bucket:
    """A token bucket that fills evenly. `left` is its content at the time `at`; it is negative if
    requests used more than expected."""

    per_minute: float
    at: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.size

    @property
    def size(self) -> float:
        return max(1.0, self.per_minute / 60 * BURST_S)

    def refill(self, now: float) -> None:
        self.left = min(self.size, self.left + (now - self.at) * self.per_minute / 60)
        self.at = now

    def missing_s(self, wanted: float) -> float:
        """Seconds until `wanted` (at most `size`) are available."""
        return max(0.0, (min(wanted, self.size) - self.left) * 60 / self.per_minute)


@dataclass(slots=True)
class Guess:
    """Estimate of a limit that the endpoint does not name, from the refusals at each pace.

    Above the limit, the excess share of the requests is refused, so a slower pace has fewer
    refusals. If it has as many as before, they have another cause and slowing down is useless.
    """

    is_in_use: bool = False
    first_sent: float | None = None
    num_sent: int = 0
    num_refused: int = 0
    """`num_sent` and `num_refused` count since the last cut."""
    _sent_before: int = 0
    _refused_before: int = 0
    _cut_at: float = 0.0
    _cut_from: float = 0.0
    """The pace before the last cut."""
    _grown_at: float = 0.0
    refused_at: float = 0.0
    """When the current period began: a period ends when the first of its requests is refused."""
    _sent_since: int = 0
    _period_s: float = 0.0
    _sent_in_period: int = 0
    """Requests of the last period that has ended; 0 once `settle` has judged it."""
    _refused_in_period: int = 0

    def record_sent(self, now: float) -> float:
        """Count a request that is sent; return the factor by which the pace may grow."""
        if self.first_sent is None:
            self.first_sent = now
        self.num_sent += 1
        self._sent_since += 1
        if not self.is_in_use or now - self._grown_at < GROWTH_EVERY_S:
            return 1.0
        self._grown_at = now
        return FAST_GROWTH if now - self.refused_at > CALM_S else GROWTH

    def end_period(self, now: float) -> None:
        """End the current period, as the first of its requests is refused."""
        self._period_s = now - (self.refused_at or self._began(now))
        self._sent_in_period, self._refused_in_period = self._sent_since, 0
        self._sent_since, self.refused_at = 0, now

    def settle(self) -> float | None:
        """Requests per minute that the endpoint took in the last period that has ended: between two
        refusals, that is its limit. Call it when all refusals of the period are known. None if
        the endpoint took none or most of the requests, or if the period was judged before."""
        refused, taken = self._refused_in_period, self._sent_in_period - self._refused_in_period
        self._sent_in_period = 0
        if refused < ENOUGH or not 0 < taken <= refused:
            return None
        return 60 * taken / max(1.0, self._period_s)

    def record_refusal(self, sent_at: float) -> None:
        self._refused_in_period += 1
        if sent_at < self._cut_at:
            self._refused_before += 1
        else:
            self.num_refused += 1

    def pace_so_far(self, now: float) -> float:
        """Requests per minute since the first one."""
        return 60 * self.num_sent / max(1.0, now - self._began(now))

    def _began(self, now: float) -> float:
        return now if self.first_sent is None else self.first_sent

    def is_too_fast(self, pace: float) -> bool:
        if self.num_refused < ENOUGH:
            return pace >= 0.95 * self._cut_from
        before = min(1.0, self._refused_before / max(1, self._sent_before))
        share = self.num_refused / max(1, self.num_sent)
        expected = max(0.0, 1 - (1 - before) * self._cut_from / pace)
        return share > MANY or share <= (before + expected) / 2

    def cut(self, now: float, pace: float) -> None:
        self.is_in_use = True
        self._sent_before, self._refused_before = self.num_sent, self.num_refused
        self.num_sent = self.num_refused = 0
        self._cut_at = self._grown_at = now
        self._cut_from = pace


@dataclass(slots=True)
class Allowances:
    """What one endpoint allows for one key. All times are seconds of the same clock."""

    configured: dict[str, float | None] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    paused_until: float = 0.0
    tokens_each: float = 0.0
    """Running mean of the tokens of answered requests."""
    _refusals: int = 0
    """Refusals in a row."""
    _disbelieved: set[str] = field(default_factory=set)
    """Units whose headers count a longer time than a minute."""
    _in_spite: float = 0.0
    """Refusals in spite of the headers, see IN_SPITE."""
    _guess: Guess = field(default_factory=Guess)

    def __post_init__(self) -> None:
        for unit in self.configured:
            self._use_configured(unit)

    def _use_configured(self, unit: str) -> None:
        if per_minute := self.configured.get(unit):
            self.buckets[unit] = Bucket(HEADROOM * per_minute, 0.0)

    @property
    def is_limited(self) -> bool:
        """Whether a limit is known or a request was ever refused."""
        return bool(self.buckets) or self.paused_until > 0

    def paces(self) -> dict[str, float]:
        """What is allowed a minute, as far as it is known: `requests_per_minute`, …"""
        return {f"{unit}_per_minute": each.per_minute for unit, each in self.buckets.items()}

    def wait_s(self, now: float) -> float:
        """Seconds until the next request may be sent."""
        waits = [self.paused_until - now]
        for unit, bucket in self.buckets.items():
            bucket.refill(now)
            waits.append(bucket.missing_s(self._cost(unit)))
        return max(0.0, *waits)

    def send(self, now: float) -> float:
        """Count a request that is sent; return the tokens that it is expected to use."""
        if (factor := self._guess.record_sent(now)) > 1:
            self.buckets["requests"].per_minute *= factor
        if self._guess.is_in_use and (taken := self._guess.settle()) is not None:
            pace = max(1.0, taken)
            if pace < self.buckets["requests"].per_minute:
                self._slow_down(now, pace, tried=pace)
        for unit, bucket in self.buckets.items():
            bucket.refill(now)
            bucket.left -= self._cost(unit)
        return self.tokens_each

    def _cost(self, unit: str) -> float:
        """Expected use of one request."""
        return self.tokens_each if unit == "tokens" else 1.0

    def record_answer(self, now: float, expected: float, used: float) -> None:
        """Count an answered request that used `used` tokens."""
        self._refusals = 0
        self._in_spite = max(0.0, self._in_spite - FORGIVEN)
        self.tokens_each = used if not self.tokens_each else 0.9 * self.tokens_each + 0.1 * used
        if tokens := self.buckets.get("tokens"):
            tokens.refill(now)
            tokens.left -= used - expected

    def read_headers(self, now: float, headers: Mapping[str, str]) -> None:
        """Adopt the limits in the `x-ratelimit-*` headers of a reply, as OpenAI spells them.

        The headers do not say what time a limit counts. One that is free again within a minute is
        taken for one of a minute, until requests are refused in spite of it.
        """
        for unit in UNITS if headers else ():
            limit = _number(headers.get(f"{HEADER_PREFIX}limit-{unit}", ""))
            if not limit or unit in self._disbelieved:
                continue
            reset_s = duration_s(headers.get(f"{HEADER_PREFIX}reset-{unit}", ""))
            if reset_s is None:
                continue
            if reset_s > LONGEST_RESET_S:
                self._disbelieve(unit)
                continue
            allowed = HEADROOM * min(limit, self.configured.get(unit) or limit)
            if unit == "requests":
                self._guess.is_in_use = False
            bucket = self.buckets.get(unit)
            if bucket is None:
                bucket = self.buckets[unit] = Bucket(allowed, now)
            bucket.refill(now)
            bucket.per_minute = allowed
            remaining = _number(headers.get(f"{HEADER_PREFIX}remaining-{unit}", ""))
            if remaining is not None:
                bucket.left = min(bucket.left, remaining)

    def record_refusal(self, now: float, sent_at: float, retry_after_s: float | None) -> None:
        """Pause all requests because one was refused because of a limit."""
        # requests that were in flight at an earlier refusal add no information
        is_news = sent_at >= self._guess.refused_at
        if is_news:
            self._refusals += 1
            self._guess.end_period(now)
        self._guess.record_refusal(sent_at)
        pause = retry_after_s
        if pause is None:
            pause = min(MAX_PAUSE_S, UNTOLD_PAUSE_S * 2.0 ** (min(self._refusals, 10) - 1))
        self.paused_until = max(self.paused_until, now + pause)
        if not is_news:
            return
        self._in_spite += 1
        if self._in_spite >= IN_SPITE and not self._guess.is_in_use:
            self._disbelieve("requests")
        if "requests" not in self.buckets or self._guess.is_in_use:
            self._learn_pace(now)

    def _disbelieve(self, unit: str) -> None:
        """Use the limit in the headers no longer: it counts an hour or a day, say."""
        self._disbelieved.add(unit)
        self.buckets.pop(unit, None)
        self._use_configured(unit)

    def _learn_pace(self, now: float) -> None:
        """Reduce the pace that was refused; the endpoint names no limit."""
        bucket, guess = self.buckets.get("requests"), self._guess
        if bucket is None:
            bucket = self.buckets["requests"] = Bucket(guess.pace_so_far(now), now)
        elif not guess.is_too_fast(bucket.per_minute):
            return
        self._slow_down(now, max(1.0, CUT * bucket.per_minute), tried=bucket.per_minute)

    def _slow_down(self, now: float, per_minute: float, *, tried: float) -> None:
        """Send at this pace from now on; at a pace of `tried` the endpoint refuses requests."""
        bucket = self.buckets["requests"]
        self._guess.cut(now, tried)
        bucket.per_minute, bucket.left = per_minute, min(bucket.left, 1.0)


class RequestQueue:
    """Requests at the pace of `allowances`, in order of arrival. A request that was refused and is
    sent again keeps its place."""

    def __init__(self, allowances: Allowances) -> None:
        self.allowances = allowances
        self._numbers = itertools.count()
        self._queue: list[tuple[int, asyncio.Future[float]]] = []
        self._timer: asyncio.TimerHandle | None = None

    def is_throttled(self) -> bool:
        """Whether a request waits, or a refusal would make one wait."""
        now = running_loop().time()
        return bool(self._queue) or now < self.allowances.paused_until

    def send_now(self, now: float) -> float | None:
        """Count a request that need not wait, and return the tokens that it is expected to use;
        None if it has to wait. `now` is the time of the loop."""
        allowances = self.allowances
        if self._queue or (allowances.is_limited and allowances.wait_s(now) > 0):
            return None
        return allowances.send(now)

    def number(self) -> int:
        """Return the next place in the queue."""
        return next(self._numbers)

    async def wait(self, number: int) -> float:
        """Wait until the request may be sent; return the tokens that it is expected to use."""
        if (expected := self.send_now(running_loop().time())) is not None:
            return expected
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (number, turn))
        self._serve()
        return await turn

    def _serve(self) -> None:
        """Let requests go as far as allowed; set a timer for the next one."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._queue:
            _, turn = self._queue[0]
            if turn.done():  # cancelled
                heapq.heappop(self._queue)
                continue
            now = loop.time()
            if wait_s := self.allowances.wait_s(now):
                self._timer = loop.call_later(max(wait_s, 0.001), self._serve)
                return
            heapq.heappop(self._queue)
            turn.set_result(self.allowances.send(now))


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
