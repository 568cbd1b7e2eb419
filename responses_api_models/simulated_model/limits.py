"""Limits of a busy endpoint: requests and tokens per minute, and slots."""

import heapq
from dataclasses import dataclass, field
from math import ceil

from .config import RateLimit


@dataclass(slots=True)
class Bucket:
    """Refills evenly up to the tokens of `burst_s`; `left` is the content at the time `at`."""

    per_minute: float
    burst_s: float
    at: float = 0.0
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.size

    @property
    def size(self) -> float:
        """The capacity, at least one request."""
        return max(1.0, self.per_minute / 60 * self.burst_s)

    def refill(self, now: float) -> None:
        self.left = min(self.size, self.left + (now - self.at) * self.per_minute / 60)
        self.at = now

    def missing_s(self, wanted: float) -> float:
        """Seconds until `wanted` (at most the capacity) are available."""
        return max(0.0, (min(wanted, self.size) - self.left) * 60 / self.per_minute)


class Limiter:
    """Both buckets. An accepted request is taken from both, a refused one from neither."""

    def __init__(self, limit: RateLimit | None) -> None:
        given = {
            "requests": limit.requests_per_minute if limit else None,
            "tokens": limit.tokens_per_minute if limit else None,
        }
        burst_s = limit.burst_s if limit else 0.0
        self._buckets = {
            unit: Bucket(per_minute, burst_s) for unit, per_minute in given.items() if per_minute
        }

    def take(self, tokens: int, now: float) -> tuple[str, float] | None:
        """None if the request is accepted; else the exhausted limit, and the seconds to wait."""
        costs = {"requests": 1, "tokens": tokens}
        for unit, bucket in self._buckets.items():
            bucket.refill(now)
            if missing_s := bucket.missing_s(costs[unit]):
                return unit, missing_s
        for unit, bucket in self._buckets.items():
            bucket.left -= costs[unit]
        return None

    def headers(self) -> tuple[tuple[str, str], ...]:
        """OpenAI's `x-ratelimit-*` headers after the last request."""
        return tuple(
            (f"x-ratelimit-{what}-{unit}", value)
            for unit, bucket in self._buckets.items()
            for what, value in (
                ("limit", f"{bucket.per_minute:.0f}"),
                ("remaining", f"{max(0.0, bucket.left):.0f}"),
                ("reset", duration(bucket.missing_s(bucket.size))),
            )
        )

    def figures(self) -> dict[str, float]:
        return {unit: bucket.per_minute for unit, bucket in self._buckets.items()}


def duration(seconds: float) -> str:
    """A duration in OpenAI's form: `20ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:.3g}s"


class Slots:
    """A queue with `number` slots, in order of arrival.

    The duration of each request is known on arrival, so its start is computed without waiting.
    """

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._ends: list[float] = []

    def begin(self, now: float, takes_s: float) -> float:
        """The time at which a request that arrives `now` starts."""
        if self._number is None:
            return now
        if len(self._ends) < self._number:
            heapq.heappush(self._ends, now + takes_s)
            return now
        begins = max(now, self._ends[0])
        heapq.heapreplace(self._ends, begins + takes_s)
        return begins
