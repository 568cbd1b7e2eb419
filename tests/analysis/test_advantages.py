"""Advantages of a group against hand-computed ones, and what holds for any rewards."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.analysis.metrics.advantages import GroupFigures, Method, advantages

METHODS: tuple[Method, ...] = ("grpo", "dr_grpo", "rloo")

rewards = st.lists(st.none() | st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), max_size=12)


@pytest.mark.parametrize(
    ("given_rewards", "method", "expected"),
    [
        ([1, 0, 0, 0], "grpo", [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),
        ([1, 0, 0, 0], "dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ([1, 0, 0, 0], "rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ([2, 4, 9], "grpo", [-3 / (26 / 3) ** 0.5, -1 / (26 / 3) ** 0.5, 4 / (26 / 3) ** 0.5]),
        ([2, 4, 9], "dr_grpo", [-3, -1, 4]),
        ([2, 4, 9], "rloo", [2 - 6.5, 4 - 5.5, 9 - 3]),
        ([1, None, 0], "grpo", [1, 0, -1]),
        ([1, None, 0], "dr_grpo", [0.5, 0, -0.5]),
        ([1, None, 0], "rloo", [1, 0, -1]),
        ([0.1, 0.1, 0.1], "grpo", [0, 0, 0]),
        ([0.3], "rloo", [0]),
        ([None, None], "grpo", [0, 0]),
        ([], "dr_grpo", []),
    ],
)
def test_advantages_by_hand(
    given_rewards: list[float | None], method: Method, expected: list[float]
) -> None:
    assert advantages(given_rewards, method) == pytest.approx(expected, abs=1e-7)


def test_the_figures_of_a_group_by_hand() -> None:
    figures = GroupFigures.of([1.0, None, 0.0, 1.0, 0.5], threshold=0.5)
    assert figures.to_json() == {
        "n": 4,
        "mean": 0.625,
        "std": pytest.approx(math.sqrt(0.171875)),
        "pass_rate": 0.75,
        "zero_variance": False,
    }
    assert GroupFigures.of([0.7, None, 0.7]) == (2, 0.7, 0.0, 0.0, True)
    assert GroupFigures.of([None]) == (0, None, None, None, False)


@given(rewards)
def test_an_unscorable_member_moves_no_other(found: list[float | None]) -> None:
    scored = [reward for reward in found if reward is not None]
    for method in METHODS:
        with_all = advantages(found, method)
        alone = iter(advantages(scored, method))
        assert with_all == [0.0 if reward is None else next(alone) for reward in found]
    assert GroupFigures.of(found) == GroupFigures.of(scored)


@given(rewards, st.floats(-1e3, 1e3), st.floats(0.5, 1e3))
def test_advantages_add_up_to_nothing_and_ignore_where_zero_is(
    found: list[float | None], shift: float, scale: float
) -> None:
    moved = [None if reward is None else reward * scale + shift for reward in found]
    spread = GroupFigures.of(found).std or 0.0
    largest = max((abs(reward) for reward in found if reward is not None), default=0.0)
    for method in METHODS:
        values = advantages(found, method)
        size = max(map(abs, values), default=0.0)
        assert math.fsum(values) == pytest.approx(0, abs=1e-9 * (1 + size + largest))
        if method != "grpo":
            again = [value / scale for value in advantages(moved, method)]
            assert again == pytest.approx(values, abs=1e-9 * (1 + largest + abs(shift)))
        elif spread > 1e-3:
            again = advantages(moved, method)
            assert again == pytest.approx(values, abs=1e-4)


@given(rewards)
def test_what_the_methods_have_in_common(found: list[float | None]) -> None:
    """All rank the members as their rewards do; equal rewards earn equal advantages."""
    for method in METHODS:
        values = advantages(found, method)
        pairs = sorted(
            (reward, value)
            for reward, value in zip(found, values, strict=True)
            if reward is not None
        )
        assert [value for _, value in pairs] == sorted(value for _, value in pairs)
        if len({reward for reward, _ in pairs}) < 2:
            assert not any(values)
