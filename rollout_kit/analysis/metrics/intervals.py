"""Estimates a total from a random sample of rollouts. Pure: numbers in, intervals out.

The cost of rollouts has a long tail: a mean's normal interval is too narrow and lies too low. The
interval therefore spans two: Student's, and that of a log-normal mean (Cox's, zeros apart: Zhou &
Gao 1997, Aitchison 1955). If the logarithms are skewed to the left, as under a limit on tokens,
there is no long tail, and Johnson's interval for a skewed mean (1978) replaces the second.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from .student import CONFIDENCE, t_quantile

Z_95 = 1.96
"""Half-width of a 95 % normal interval, in standard errors."""

MIN_DRAWN = 2
"""A smaller sample has no standard deviation."""

LEANING = 1.5
"""Left skewness of the logarithms, in standard errors, from which there is no long tail."""

LARGEST = 700.0
"""Logarithm of about the largest float."""


class Interval(NamedTuple):
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def total(drawn: Sequence[float], number: int) -> Interval:
    """The sum of `number` non-negative values, of which `drawn` are a random sample of at least
    two. Exact if all are drawn."""
    rest, known = number - len(drawn), math.fsum(drawn)
    if rest <= 0:
        return Interval(known, known, known)
    mean = fmean(drawn)
    low, high = _bound_rest(drawn, mean, rest)
    return Interval(
        known + rest * mean, known + rest * max(0.0, low), known + rest * max(mean, high)
    )


def share(hits: int, drawn: int) -> Interval:
    """Share of hits among all, from `hits` among those drawn."""
    return Interval(hits / drawn, *wilson(hits / drawn, drawn))


def wilson(mean: float, number: float) -> tuple[float, float]:
    """Wilson's score interval of a mean of so many numbers from 0 to 1."""
    shift = Z_95 * Z_95 / number
    middle = (mean + shift / 2) / (1 + shift)
    spread = max(0.0, mean * (1 - mean))
    half = Z_95 * math.sqrt(spread / number + shift / (4 * number)) / (1 + shift)
    return max(0.0, middle - half), min(1.0, middle + half)


def _bound_rest(drawn: Sequence[float], mean: float, rest: int) -> tuple[float, float]:
    """Bounds of the mean of the `rest` values that were not drawn."""
    spread = stdev(drawn)
    if not spread:
        return mean, mean
    number = len(drawn)
    error = spread * math.sqrt(1 / number + 1 / rest)
    quantile = t_quantile(CONFIDENCE, number - 1)
    half = quantile * error
    bounds = [(mean - half, mean + half)]
    logs = [math.log(each) for each in drawn if each > 0]
    if len(logs) > MIN_DRAWN and (width := stdev(logs)):
        if _skewness(logs, width) * math.sqrt(len(logs) / 6) > -LEANING:
            bounds.append(_log_normal(logs, number, rest))
        else:
            shift = _skewness(drawn, spread) * spread * (1 + 2 * quantile**2) / (6 * number)
            bounds.append((mean - half + shift, mean + half + shift))
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _log_normal(logs: Sequence[float], number: int, rest: int) -> tuple[float, float]:
    """Bounds of a mean, from `number` values whose non-zero ones have these logarithms."""
    count = len(logs)
    variance = stdev(logs) ** 2
    middle = math.log(count / number) + fmean(logs) + variance / 2
    zeros = number / count - 1
    error = math.sqrt(
        (variance + zeros) * (1 / number + 1 / rest) + variance**2 / (2 * (count - 1))
    )
    half = t_quantile(CONFIDENCE, count - 1) * error
    return math.exp(min(middle - half, LARGEST)), math.exp(min(middle + half, LARGEST))


def _skewness(numbers: Sequence[float], spread: float) -> float:
    mean = fmean(numbers)
    return fmean(((each - mean) / spread) ** 3 for each in numbers)
