"""Finds the knee: the number in flight beyond which a model's responses only wait longer.

Pure. By Little's law, throughput is in flight / time: it rises while the model has capacity, and
stays constant while the queue grows.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

STEPS = 4
"""Classes of the number in flight per doubling."""

SEEN, EXACT = 16, 0.07
"""Minimum number of times in a class, and maximum relative standard error of their mean; classes
that miss either are pooled with the next."""

FORGET = 0.002
"""Minimum weight of a new time in the means of its class."""

BEST = 0.9
"""Share of the highest throughput that counts as full throughput."""

EXPLORED = 2.0
"""A knee is sure once this multiple of it was in flight without more throughput."""

FORGOTTEN_S = 600.0
"""Discard times measured above the limit after this many seconds; capacity may have changed."""


class Knee(NamedTuple):
    """`at`: fewest in flight with full throughput; `is_sure`: EXPLORED times as many were tried;
    `is_lowest`: no fewer were tried; `most`: most that were tried."""

    at: float
    is_sure: bool
    is_lowest: bool
    most: float
    slower: float
    """Time with `most` in flight, as a multiple of the time with `at`."""


@dataclass(slots=True)
class _Class:
    number: int = 0
    in_flight: float = 0.0
    root: float = 0.0
    seconds: float = 0.0
    """These are means; `root` of the square roots of the times, where one long time weighs less."""
    last: float = 0.0

    def add(self, now: float, in_flight: float, seconds: float) -> None:
        self.number += 1
        self.last = now
        weight = max(1 / self.number, FORGET)
        self.in_flight += weight * (in_flight - self.in_flight)
        self.seconds += weight * (seconds - self.seconds)
        self.root += weight * (math.sqrt(seconds) - self.root)

    def is_known(self) -> bool:
        if self.number < SEEN:
            return False
        variation = self.seconds / self.root**2 - 1  # of the roots; of the times, 4 times that
        return 4 * max(0.0, variation) <= EXACT**2 * _weight(self)


@dataclass(slots=True)
class Times:
    """Response times, by the number in flight at the request."""

    classes: dict[int, _Class] = field(default_factory=dict)

    def add(self, now: float, in_flight: float, seconds: float) -> None:
        which = round(STEPS * math.log2(max(1.0, in_flight)))
        self.classes.setdefault(which, _Class()).add(now, in_flight, max(seconds, 1e-6))

    def forget(self, now: float, limit: float) -> None:
        """Drop classes above the limit whose last time is older than FORGOTTEN_S."""
        for which, each in list(self.classes.items()):
            if each.in_flight > limit and now - each.last > FORGOTTEN_S:
                del self.classes[which]

    def knee(self) -> Knee | None:
        """None before enough times were added."""
        points = self._points()
        if not points:
            return None
        rates = [each.in_flight / each.root**2 for each in points]
        enough = BEST * _most(points, rates)
        first = next((which for which, rate in enumerate(rates) if rate >= enough), len(rates) - 1)
        at, root = points[first].in_flight, points[first].root
        if first:
            # with the time of the class below; only a knee that is too low corrects itself
            below = points[first - 1]
            at, root = max(below.in_flight, min(at, enough * below.root**2)), below.root
        top = points[-1]
        is_sure = top.in_flight >= EXPLORED * at
        return Knee(at, is_sure, first == 0, top.in_flight, (top.root / root) ** 2)

    def _points(self) -> list[_Class]:
        """Pooled classes with times that never fall as in flight rises: a fall is noise, and is
        averaged out."""
        pooled: list[_Class] = []
        gathered = _Class()
        for which in sorted(self.classes):
            gathered = _combine(gathered, self.classes[which])
            if gathered.is_known():
                pooled.append(gathered)
                gathered = _Class()
        if gathered.number and pooled:
            pooled[-1] = _combine(pooled[-1], gathered)
        blocks: list[list[_Class]] = []
        for each in pooled:
            blocks.append([each])
            while len(blocks) > 1 and _mean(blocks[-2]) >= _mean(blocks[-1]):
                blocks[-2:] = [blocks[-2] + blocks[-1]]
        return [
            replace(each, root=root)
            for block in blocks
            for root in [_mean(block)]
            for each in block
        ]


def _weight(each: _Class) -> float:
    return min(each.number, 1 / FORGET)


def _mean(block: list[_Class]) -> float:
    return sum(_weight(each) * each.root for each in block) / sum(map(_weight, block))


def _most(points: list[_Class], rates: list[float]) -> float:
    """Highest throughput of two neighbours; that of a single class would be biased upwards."""
    weights = [_weight(each) for each in points]
    pairs = zip(weights, weights[1:], rates, rates[1:], strict=False)
    both = [(one * a + other * b) / (one + other) for one, other, a, b in pairs]
    return max(both, default=rates[0])


def _combine(one: _Class, other: _Class) -> _Class:
    number = one.number + other.number
    share = other.number / number
    return _Class(
        number,
        one.in_flight + share * (other.in_flight - one.in_flight),
        one.root + share * (other.root - one.root),
        one.seconds + share * (other.seconds - one.seconds),
        max(one.last, other.last),
    )
