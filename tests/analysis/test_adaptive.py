"""Repeats that depend on rewards: estimates stay unbiased, and intervals cover what they say."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from rollout_kit.analysis.metrics.adaptive import MeanOverTasks, estimate_task, is_decided
from rollout_kit.analysis.metrics.intervals import Z_95

RUNS, TASKS = 10_000, 200


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.5, 1.0)])
@pytest.mark.parametrize(("first", "most"), [(2, 3), (2, 5), (3, 6), (4, 8)])
def test_the_estimates_are_exactly_unbiased(
    values: tuple[float, ...], first: int, most: int
) -> None:
    """Over all sequences of rewards, each with its probability."""
    if len(values) ** most > 5000:
        most = first + 2
    for chances in np.random.default_rng(1).dirichlet([0.7] * len(values), 5):
        of = dict(zip(values, chances, strict=True))
        true = sum(value * chance for value, chance in of.items())
        mean = square = variance = 0.0
        for rewards in product(values, repeat=most):
            seen = rewards[:first] if is_decided(rewards, first) else rewards
            chance = math.prod(of[value] for value in rewards)
            found, spread = estimate_task(seen, first)
            mean += chance * found
            square += chance * found * found
            variance += chance * spread
        assert mean == pytest.approx(true)
        assert variance == pytest.approx(square - true * true)


def test_equal_numbers_give_the_mean_and_its_variance() -> None:
    rewards = [0.2, 0.9, 0.4, 0.4]
    mean, variance = estimate_task(rewards)
    assert mean == pytest.approx(np.mean(rewards))
    assert variance == pytest.approx(np.var(rewards, ddof=1) / 4)
    assert math.isnan(estimate_task([1.0])[1])


def test_an_interval_of_few_differing_tasks_is_not_believed() -> None:
    equal = MeanOverTasks.of([([1.0, 1.0], 2)] * 500)
    assert equal is not None
    assert (equal.half_width, equal.num_differing) == (0.0, 0)
    assert not equal.is_within(0.01)
    assert MeanOverTasks.of([([], None)]) is None


def table(first: int | None, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The estimates of so many successes of so many rollouts, by the code under test."""
    means, variances = np.zeros((most + 1, most + 1)), np.zeros((most + 1, most + 1))
    for number in range(1, most + 1):
        for hits in range(number + 1):
            if first is not None and number > first and hits in (0, number):
                continue  # it would have stopped
            rewards = [1.0] * hits + [0.0] * (number - hits)
            means[hits, number], variances[hits, number] = estimate_task(rewards, first)
    return means, variances


Stop = Callable[[np.ndarray], np.ndarray]


@pytest.mark.parametrize(
    ("first", "waves", "goal"),
    [
        (4, (4, 8), None),
        (2, (2, 8), None),
        (None, (2, 4, 6, 8, 10, 12, 14, 16), 0.021),
        (None, (4, 8, 12, 16), 0.018),
        (4, (4, 8, 12, 16), 0.02),
    ],
    ids=["decided", "decided after two", "goal", "goal, few waves", "both"],
)
def test_intervals_cover_what_they_say(
    first: int | None, waves: tuple[int, ...], goal: float | None
) -> None:
    """10,000 runs over 200 tasks whose pass rates are from Beta(0.5, 0.5)."""
    draw = np.random.default_rng(7)
    means, variances = table(first, waves[-1])
    rates = draw.beta(0.5, 0.5, (RUNS, TASKS))
    hits = np.zeros((RUNS, TASKS), dtype=int)
    numbers = np.zeros((RUNS, TASKS), dtype=int)
    is_open = np.ones(RUNS, dtype=bool)
    for before, upto in zip((0, *waves), waves, strict=False):
        asked = is_open[:, None] & np.ones(TASKS, dtype=bool)
        if first is not None and before >= first:
            asked &= (hits > 0) & (hits < numbers) | (numbers > first)
        hits += np.where(asked, draw.binomial(upto - before, rates), 0)
        numbers += np.where(asked, upto - before, 0)
        half = Z_95 * np.sqrt(variances[hits, numbers].sum(1)) / TASKS
        if goal is not None:
            is_open &= half > goal
    error = means[hits, numbers].mean(1) - rates.mean(1)
    covered = float((np.abs(error) <= half).mean())
    assert 0.943 <= covered <= 0.957, covered
    assert abs(float(error.mean())) <= 0.1 * float(error.std())
    if goal is not None:
        shares = [float((numbers.max(1) == upto).mean()) for upto in waves]
        assert max(shares) < 0.999, "runs stop at different waves"
