"""How a model's time grows with what is in flight, and from where on more only waits longer.

Pure. By Little's law, in flight / time is what comes out per second: it rises as long as the model
has room, and then stays, while the queue grows.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

STEPS = 4
"""Classes of numbers in flight for each doubling."""

SEEN, EXACT = 16, 0.07
"""Rollouts before their mean is believed, and its relative standard error; classes that have not
come to that are taken together."""

FORGET = 0.002
"""Weight of one more time among those of its class, at least."""

BEST = 0.9
"""Share of the most per second that counts as all of it."""

EXPLORED = 2.0
"""So many times what gives all of it must have been tried, to believe that no more comes."""

FORGOTTEN_S = 600.0
"""What is known of more in flight than there is now, after that: the model may bear it today."""


class Knee(NamedTuple):
    """`at`: as few in flight as give all that was seen to come out; `is_sure` once many more were
    tried. `is_lowest`: fewer were never tried."""

    at: float
    is_sure: bool
    is_lowest: bool
    most: float
    slower: float
    """Times the time at `at` that the most in flight took."""


@dataclass(slots=True)
class _Class:
    number: int = 0
    in_flight: float = 0.0
    root: float = 0.0
    seconds: float = 0.0
    """Means, of the roots of the seconds first: a single long answer weighs less among those."""
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
        spread = max(0.0, self.seconds / self.root**2 - 1)  # of the roots; half that of the times
        return 4 * spread <= EXACT**2 * _weight(self)


@dataclass(slots=True)
class Times:
    """Of answers, by what was in flight when they were asked for."""

    classes: dict[int, _Class] = field(default_factory=dict)

    def add(self, now: float, in_flight: float, seconds: float) -> None:
        which = round(STEPS * math.log2(max(1.0, in_flight)))
        self.classes.setdefault(which, _Class()).add(now, in_flight, max(seconds, 1e-6))

    def forget(self, now: float, limit: float) -> None:
        """What is long ago and above the limit."""
        for which, each in list(self.classes.items()):
            if each.in_flight > limit and now - each.last > FORGOTTEN_S:
                del self.classes[which]

    def knee(self) -> Knee | None:
        """None before enough was seen."""
        points = self._points()
        if not points:
            return None
        rates = [each.in_flight / each.root**2 for each in points]
        enough = BEST * _most(points, rates)
        first = next((which for which, rate in enumerate(rates) if rate >= enough), len(rates) - 1)
        at, root = points[first].in_flight, points[first].root
        if first:
            # at the time just below; too few is noticed, as the limit goes there, too many is not
            below = points[first - 1]
            at, root = max(below.in_flight, min(at, enough * below.root**2)), below.root
        top = points[-1]
        is_sure = top.in_flight >= EXPLORED * at
        return Knee(at, is_sure, first == 0, top.in_flight, (top.root / root) ** 2)

    def _points(self) -> list[_Class]:
        """In flight and times both rising: more in flight make nothing faster, and where it seems
        so, it is chance."""
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
    """Per second, of neighbours together: the best one alone would be a lucky one."""
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
