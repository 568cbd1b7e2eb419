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

HEADROOM = 0.97
"""Of what is allowed: the endpoint's clock and ours differ, and requests overtake each other."""

BURST_S = 1.0
"""Requests that may go at once are those of so many seconds."""

UNTOLD_PAUSE_S = 1.0
"""After a refusal that names no time; twice as long after each that follows at once."""

MAX_PAUSE_S = 60.0

CUT = 0.8
"""Of the pace that was refused is tried next, where the endpoint tells no limit."""

GROWTH, GROWTH_EVERY_S = 1.03, 5.0
"""By so much the pace grows again where nothing is refused."""

MANY = 0.15
"""Share of refusals for which the pace is always to blame."""

ENOUGH = 3
"""Refusals since the pace was cut that tell whether it helped."""

TOLD = "x-ratelimit-"
"""How the headers begin that tell what is allowed."""

UNITS = ("requests", "tokens")


@dataclass(slots=True)
class Bucket:
    """Fills evenly; `left` as of `at` may be below zero where more was used than was expected."""

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
        """Seconds until `wanted` are there: all that it holds, where more are wanted."""
        return max(0.0, (min(wanted, self.size) - self.left) * 60 / self.per_minute)


@dataclass(slots=True)
class Guess:
    """Of a limit that nobody tells, from how many requests are refused at which pace.

    At a pace above a limit the share beyond it is refused, so that a slower pace has fewer
    refusals. Where it has as many as before, their cause is another, and slowing down is no use.
    """

    is_in_use: bool = False
    first_sent: float | None = None
    num_sent: int = 0
    num_refused: int = 0
    """Both since the last cut."""
    _sent_before: int = 0
    _refused_before: int = 0
    _cut_at: float = 0.0
    _cut_from: float = 0.0
    """The pace before it."""
    _grown_at: float = 0.0

    def sent(self, now: float) -> float:
        """A request goes; by what factor the pace may grow."""
        if self.first_sent is None:
            self.first_sent = now
        self.num_sent += 1
        if not self.is_in_use or now - self._grown_at < GROWTH_EVERY_S:
            return 1.0
        self._grown_at = now
        return GROWTH

    def refused(self, sent_at: float) -> None:
        if sent_at < self._cut_at:
            self._refused_before += 1
        else:
            self.num_refused += 1

    def pace_so_far(self, now: float) -> float:
        """Requests a minute."""
        began = now if self.first_sent is None else self.first_sent
        return 60 * self.num_sent / max(1.0, now - began)

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
    """Of one endpoint and key. Times are seconds on any one clock."""

    configured: dict[str, float | None] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    paused_until: float = 0.0
    tokens_each: float = 0.0
    """Tokens of a request, by those that were answered."""
    _refusals: int = 0
    """In a row."""
    _refused_at: float = 0.0
    _guess: Guess = field(default_factory=Guess)

    def __post_init__(self) -> None:
        for unit, per_minute in self.configured.items():
            if per_minute:
                self.buckets[unit] = Bucket(HEADROOM * per_minute, 0.0)

    @property
    def is_limited(self) -> bool:
        """Whether anything has ever held a request up, or was said to."""
        return bool(self.buckets) or self.paused_until > 0

    def wait_s(self, now: float) -> float:
        """Until the next request may go."""
        waits = [self.paused_until - now]
        for unit, bucket in self.buckets.items():
            bucket.refill(now)
            waits.append(bucket.missing_s(self._cost(unit)))
        return max(0.0, *waits)

    def send(self, now: float) -> float:
        """A request goes; the tokens that it is expected to cost."""
        if (factor := self._guess.sent(now)) > 1:
            self.buckets["requests"].per_minute *= factor
        for unit, bucket in self.buckets.items():
            bucket.refill(now)
            bucket.left -= self._cost(unit)
        return self.tokens_each

    def _cost(self, unit: str) -> float:
        """Of one request, as far as is known before it is answered."""
        return self.tokens_each if unit == "tokens" else 1.0

    def answered(self, now: float, expected: float, used: float) -> None:
        """It passed, and cost `used` tokens."""
        self._refusals = 0
        self.tokens_each = used if not self.tokens_each else 0.9 * self.tokens_each + 0.1 * used
        if tokens := self.buckets.get("tokens"):
            tokens.refill(now)
            tokens.left -= used - expected

    def told(self, now: float, headers: Mapping[str, str]) -> None:
        """Take the `x-ratelimit-*` of a reply in, in OpenAI's spelling."""
        for unit in UNITS if headers else ():
            limit = _number(headers.get(f"{TOLD}limit-{unit}", ""))
            if not limit:
                continue
            allowed = HEADROOM * min(limit, self.configured.get(unit) or limit)
            if unit == "requests":
                self._guess.is_in_use = False
            bucket = self.buckets.get(unit)
            if bucket is None:
                bucket = self.buckets[unit] = Bucket(allowed, now)
            bucket.refill(now)
            bucket.per_minute = allowed
            remaining = _number(headers.get(f"{TOLD}remaining-{unit}", ""))
            if remaining is not None:
                bucket.left = min(bucket.left, remaining)

    def refused(self, now: float, sent_at: float, retry_after_s: float | None) -> None:
        """It was turned away for now; everybody waits."""
        is_news = sent_at >= self._refused_at  # the others of the same moment say the same
        if is_news:
            self._refusals += 1
            self._refused_at = now
        pause = retry_after_s
        if pause is None:
            pause = min(MAX_PAUSE_S, UNTOLD_PAUSE_S * 2.0 ** (min(self._refusals, 10) - 1))
        self.paused_until = max(self.paused_until, now + pause)
        self._guess.refused(sent_at)
        if is_news and ("requests" not in self.buckets or self._guess.is_in_use):
            self._slow_down(now)

    def _slow_down(self, now: float) -> None:
        """No limit is told: somewhat less than the pace that was refused."""
        bucket, guess = self.buckets.get("requests"), self._guess
        if bucket is None:
            bucket = self.buckets["requests"] = Bucket(guess.pace_so_far(now), now)
        elif not guess.is_too_fast(bucket.per_minute):
            return
        guess.cut(now, bucket.per_minute)
        bucket.per_minute = max(1.0, CUT * bucket.per_minute)
        bucket.left = min(bucket.left, 1.0)


class RequestQueue:
    """Requests at the pace of `allowances`, first come, first served; one that was refused and
    comes again keeps its place."""

    def __init__(self, allowances: Allowances) -> None:
        self.allowances = allowances
        self._numbers = itertools.count()
        self._queue: list[tuple[int, asyncio.Future[float]]] = []
        self._timer: asyncio.TimerHandle | None = None

    def is_throttled(self) -> bool:
        """Whether somebody waits, or would because of a refusal."""
        now = asyncio.get_running_loop().time()
        return bool(self._queue) or now < self.allowances.paused_until

    def is_held_up(self) -> bool:
        """Whether who comes now has to wait."""
        if not (self._queue or self.allowances.is_limited):
            return False
        return bool(self._queue) or self.allowances.wait_s(asyncio.get_running_loop().time()) > 0

    def number(self) -> int:
        """A place in the order."""
        return next(self._numbers)

    async def come(self, number: int) -> float:
        """Wait for the turn; the tokens that the request is expected to cost."""
        loop = asyncio.get_running_loop()
        if not self.is_held_up():
            return self.allowances.send(loop.time())
        turn: asyncio.Future[float] = loop.create_future()
        heapq.heappush(self._queue, (number, turn))
        self._serve()
        return await turn

    def _serve(self) -> None:
        """Let go who may; come back when the next may."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._queue:
            _, turn = self._queue[0]
            if turn.done():  # given up
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
