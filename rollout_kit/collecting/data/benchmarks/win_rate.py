"""The win rate of a model against a baseline, as Arena-Hard computes it.

A model of Bradley and Terry with one strength, and one weight for each feature of style. The win
rate is that of two answers in the same style.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import exp
from random import Random
from statistics import quantiles
from typing import NamedTuple

NUM_SAMPLES = 100
"""Bootstrap samples for the interval."""

NUM_STEPS = 50

CLOSE = 1e-10

LARGEST = 500.0
"""Larger exponents change nothing."""

PENALTY = 1e-6
"""Keeps strengths finite where one side wins always."""


class Battle(NamedTuple):
    """A judgement: 1 for a win, 0.5 for a tie, 0 for a loss; and how the styles differ."""

    score: float
    weight: float
    style: Sequence[float]


def compute_win_rate(
    battles: Sequence[Battle], seed: int = 0
) -> tuple[float | None, list[float] | None]:
    """The win rate from 0 to 1, and its 95 % interval; None without battles."""
    if not battles:
        return None, None
    weights = _fit(battles, [0.0] * (1 + len(battles[0].style)))
    random = Random(seed)
    drawn = [
        _compute_odds(_fit(random.choices(battles, k=len(battles)), weights)[:1], (1.0,))
        for _ in range(NUM_SAMPLES)
    ]
    low, *_, high = quantiles(drawn, n=40, method="inclusive")
    return _compute_odds(weights[:1], (1.0,)), [low, high]


def _fit(battles: Sequence[Battle], start: Sequence[float]) -> list[float]:
    """The strength and the weights of the features, by Newton's method. Battles of one style count
    as one, with their weights added."""
    size, weights = len(start), [*start]
    sums = defaultdict[tuple[float, ...], list[float]](lambda: [0.0, 0.0])
    for battle in battles:
        own = sums[(1.0, *battle.style)]
        own[0] += battle.weight
        own[1] += battle.weight * battle.score
    for _ in range(NUM_STEPS):
        gradient = [-PENALTY * weight for weight in weights]
        matrix = [[PENALTY * (row == column) for column in range(size)] for row in range(size)]
        for given, (number, won) in sums.items():
            expected = _compute_odds(weights, given)
            error, curve = won - number * expected, number * expected * (1 - expected)
            for row in range(size):
                gradient[row] += error * given[row]
                for column in range(row + 1):
                    matrix[row][column] += curve * given[row] * given[column]
        for row in range(size):  # it is symmetric
            for column in range(row):
                matrix[column][row] = matrix[row][column]
        step = _solve(matrix, gradient)
        weights = [weight + change for weight, change in zip(weights, step, strict=True)]
        if max(map(abs, step)) < CLOSE:
            break
    return weights


def _compute_odds(weights: Sequence[float], given: Sequence[float]) -> float:
    total = sum(weight * value for weight, value in zip(weights, given, strict=True))
    return 1 / (1 + exp(-min(max(total, -LARGEST), LARGEST)))


def _solve(matrix: list[list[float]], wanted: Sequence[float]) -> list[float]:
    """Gauss' elimination with the largest pivot."""
    rows = [[*row, value] for row, value in zip(matrix, wanted, strict=True)]
    size = len(rows)
    for place in range(size):
        best = max(range(place, size), key=lambda row: abs(rows[row][place]))
        rows[place], rows[best] = rows[best], rows[place]
        for row in range(place + 1, size):
            factor = rows[row][place] / rows[place][place]
            rows[row] = [
                one - factor * two for one, two in zip(rows[row], rows[place], strict=True)
            ]
    found = [0.0] * size
    for place in reversed(range(size)):
        known = sum(rows[place][column] * found[column] for column in range(place + 1, size))
        found[place] = (rows[place][size] - known) / rows[place][place]
    return found
