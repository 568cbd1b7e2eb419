"""Agreement of two raters: Cohen's kappa, with an interval. Pure.

kappa = (observed - expected) / (1 - expected) agreement, of Cohen (1960); weighted by the distance
of two values for scales (Cohen 1968). Its standard error is that of Fleiss, Cohen & Everitt (1969),
as the spread of what each rating adds to kappa. Ratings of one task are not independent, so they
are added up before. The interval is Student's t over the tasks.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from .intervals import wilson
from .student import CONFIDENCE, t_quantile

Weights = Literal["none", "linear", "quadratic"]

POWERS: dict[Weights, int] = {"linear": 1, "quadratic": 2}

ROUNDING = 1e-12
"""Differences below this come from rounding."""


class Rating(NamedTuple):
    """What two raters say of one thing. Ratings of one `cluster` are not independent."""

    first: float
    second: float
    cluster: Hashable


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two raters agree over `num_ratings` things of `num_clusters` tasks."""

    num_ratings: int
    num_clusters: int
    num_equal: int
    share: float
    """Of equal ratings, from 0 to 1."""
    share_interval: tuple[float, float]
    """Wilson's, as if each task had been rated once."""
    kappa: float | None
    """From -1 to 1. None if both raters use one value alone: then chance explains everything."""
    error: float | None
    """Standard error of kappa."""
    interval: tuple[float, float] | None
    """Of kappa, 95 %. None for fewer than two tasks, and where the raters never differ."""
    weights: Weights
    values: list[float]
    confusion: list[list[int]]
    """Row: the value of the first rater; column: that of the second."""


def measure_agreement(ratings: Sequence[Rating], weights: Weights = "none") -> Agreement:
    """The agreement of at least one rating. The weights of a scale count the real distance of two
    values, also if no rating has a value between them."""
    values = sorted({value for each in ratings for value in each[:2]})
    table = Counter((each.first, each.second) for each in ratings)
    number, equal = len(ratings), sum(each.first == each.second for each in ratings)
    clusters = len({each.cluster for each in ratings})
    kappa, error = _kappa(ratings, values, weights)
    interval = None
    if kappa is not None and error and clusters > 1:
        half = t_quantile(CONFIDENCE, clusters - 1) * error
        interval = max(-1.0, kappa - half), min(1.0, kappa + half)
    return Agreement(
        num_ratings=number,
        num_clusters=clusters,
        num_equal=equal,
        share=equal / number,
        share_interval=wilson(equal / number, clusters),
        kappa=kappa,
        error=error,
        interval=interval,
        weights=weights,
        values=values,
        confusion=[[table[one, other] for other in values] for one in values],
    )


def _kappa(
    ratings: Sequence[Rating], values: Sequence[float], weights: Weights
) -> tuple[float | None, float | None]:
    """Kappa and its standard error."""
    number = len(ratings)
    credit = _credits(values, weights)
    rows = Counter(each.first for each in ratings)
    columns = Counter(each.second for each in ratings)
    # the mean credit of a value against all that the other rater says
    of_rows = {
        one: math.fsum(credit[one, other] * columns[other] for other in columns) / number
        for one in rows
    }
    of_columns = {
        other: math.fsum(credit[one, other] * rows[one] for one in rows) / number
        for other in columns
    }
    seen = math.fsum(credit[each[:2]] for each in ratings) / number
    expected = math.fsum(of_rows[one] * rows[one] for one in rows) / number
    rest = 1 - expected
    if rest < ROUNDING:
        return None, None
    shift = seen * expected - 2 * expected + seen
    added: dict[Hashable, list[float]] = defaultdict(list)
    for one, other, cluster in ratings:
        chance = of_rows[one] + of_columns[other]
        added[cluster].append(credit[one, other] * rest - chance * (1 - seen) - shift)
    spread = math.sqrt(math.fsum(math.fsum(each) ** 2 for each in added.values()))
    error = spread / (number * rest * rest)
    return (seen - expected) / rest, 0.0 if error < ROUNDING else error


def _credits(values: Sequence[float], weights: Weights) -> dict[tuple[float, float], float]:
    """What two values count as agreement, from 0 to 1."""
    power, width = POWERS.get(weights), values[-1] - values[0]
    if power is None or not width:
        return {(one, other): float(one == other) for one, other in product(values, values)}
    return {
        (one, other): 1 - (abs(one - other) / width) ** power
        for one, other in product(values, values)
    }
