"""The metrics tell the truth: against plain formulas, and however the rollouts are split."""

import itertools
import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.analysis.metrics.aggregate import Aggregate
from rollout_kit.analysis.metrics.groups import Column, Moments
from rollout_kit.analysis.metrics.sketch import Sketch
from rollout_kit.analysis.metrics.summary import Metrics
from rollout_kit.store.lines import rollout_of

LINES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.25, 1.0]), st.booleans()), max_size=40
)


def line(task: int, reward: float | None, accurate: bool = True, **rollout: Any) -> dict[str, Any]:
    block = {
        "task_id": str(task),
        "scope": "",
        "rollout_index": 0,
        "scores": ["accurate"],
        "num_turns": 2,
        **rollout,
    }
    found: dict[str, Any] = {
        "agent_ref": {"name": "agent"},
        "_ng_task_index": task,
        "accurate": accurate,
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        "rollout": block,
    }
    return found if reward is None else {**found, "reward": reward}


def aggregate(lines: list[tuple[int, float, bool]]) -> Aggregate:
    found = Aggregate()
    for each in lines:
        found.add(rollout_of(line(*each)))
    return found


def report(lines: list[dict[str, Any]], planned: int) -> dict[str, Any]:
    metrics = Metrics()
    for each in lines:
        metrics.add(rollout_of(each))
    return metrics.report({"tasks": 2, "planned": planned}, {"elapsed_s": 4.0}, 2)


def test_the_headline_stands_at_the_top_too() -> None:
    found = report([line(0, 1.0, True), line(0, 0.5, True), line(1, 1.0, True)], 4)
    assert found["reward"] == found["metrics"]["reward"] == pytest.approx(2.5 / 3)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["pass_at_k_tasks"] == {"1": 2, "2": 1}


def answered(task: int, answer: str | None, reward: float, **block: Any) -> dict[str, Any]:
    found = line(task, reward, True)
    found["rollout"] |= {"scores": ["extracted_answer"], **block}
    return {**found, "extracted_answer": answer}


def test_the_most_common_answer_of_a_task_counts() -> None:
    lines = [
        *(answered(0, answer, float(answer == "4")) for answer in ("4", "4", "5", None)),
        *(answered(1, None, 0.0, finish_reason="max_output_tokens") for _ in range(4)),
    ]
    found = report(lines, 8)
    assert found["maj_at_k"]["4"] == 0.5 and found["maj_at_k"]["1"] == pytest.approx(0.25)
    assert found["rates"] == {"cut_off": 0.5, "no_answer": 5 / 8}
    assert "maj_at_k" not in report([line(0, 1.0, True)], 1)


@given(LINES, st.integers(0, 40))
def test_parts_add_up_to_the_whole(lines: list[tuple[int, float, bool]], cut: int) -> None:
    whole, part = aggregate(lines), aggregate(lines[:cut])
    part.merge(aggregate(lines[cut:]))
    assert part.pass_at_k() == pytest.approx(whole.pass_at_k())
    assert part.bracket(50) == pytest.approx(whole.bracket(50))
    assert part.usage == whole.usage and part.rollouts == whole.rollouts
    one, other = part.interval("reward"), whole.interval("reward")
    assert (one is None) == (other is None)
    if one is not None:
        assert one == pytest.approx(other)
    for name, moments in whole.numbers.items():
        assert part.numbers[name].mean == pytest.approx(moments.mean)
        assert part.numbers[name].stats == pytest.approx(moments.stats, abs=1e-9)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 80), st.sampled_from([0.0, 0.25, 1.0])), min_size=1),
        max_size=9,
    )
)
def test_a_column_has_the_moments_of_each_group(batches: list[list[tuple[int, float]]]) -> None:
    column, of = Column(), dict[int, list[float]]()
    for at, batch in enumerate(batches):
        rows, values = zip(*batch, strict=True)
        if at % 3 == 2:  # as from another part
            for row, value in batch:
                column.merge(row, Moments.of([value, value]))
        else:
            column.add(rows, values)
        for row, value in batch:
            of.setdefault(row, []).extend([value] * (2 if at % 3 == 2 else 1))
    assert {row: column[row] for row in of} == {row: Moments.of(each) for row, each in of.items()}
    assert column[99] == Moments()
    known = sorted(of.items())
    assert list(column.sums()) == [(len(each), sum(each)) for _, each in known]
    assert list(column.ranges()) == [(min(each), max(each)) for _, each in known]
    assert [row for _, row in column.means()] == [row for row, _ in known]
    assert [mean for mean, _ in column.means()] == pytest.approx(
        [statistics.fmean(each) for _, each in known]
    )
    whole = [each for each in column.stats() if each is not None]
    assert [(most, least) for _, most, least, _ in whole] == [
        (max(each), min(each)) for _, each in known
    ]


def test_pass_at_k_counts_every_choice_of_k() -> None:
    outcomes = {0: [1, 0, 0, 1], 1: [0, 0, 0, 0], 2: [1, 1, 1, 0]}
    found = aggregate([(task, float(r), True) for task, rs in outcomes.items() for r in rs])
    for k in (1, 2, 4):
        chances = [
            statistics.mean(max(choice) for choice in itertools.combinations(rewards, k))
            for rewards in outcomes.values()
        ]
        assert found.pass_at_k()[str(k)] == pytest.approx(statistics.mean(chances))


def test_pass_hat_k_counts_every_choice_of_k_and_has_an_interval_over_tasks() -> None:
    outcomes = {0: [1, 0, 0, 1], 1: [0, 0, 0, 0], 2: [1, 1, 1, 0], 3: [1, 1, 1, 1]}
    found = aggregate([(task, float(r), True) for task, rs in outcomes.items() for r in rs])
    figures = found.pass_hat_k()
    for k in (1, 2, 3, 4):
        chances = [
            statistics.mean(min(choice) for choice in itertools.combinations(rewards, k))
            for rewards in outcomes.values()
        ]
        mean = statistics.mean(chances)
        assert figures["pass_hat_k"][str(k)] == pytest.approx(mean)
        low, high = figures["pass_hat_k_intervals"][str(k)]
        error = statistics.stdev(chances) / len(chances) ** 0.5
        number = mean * (1 - mean) / error**2
        assert [low, high] == pytest.approx(wilson(mean, number))
    assert figures["pass_hat_k"]["1"] == found.pass_at_k()["1"]


def test_pass_hat_k_is_listed_up_to_8_and_needs_repeats() -> None:
    listed = aggregate([(0, 1.0, True)] * 20).pass_hat_k()
    assert list(listed["pass_hat_k"]) == [*"12345678", "16", "20"]
    assert listed["pass_hat_k_intervals"] == {}  # a single task has none
    assert aggregate([(0, 1.0, True), (1, 0.0, True)]).pass_hat_k() == {}
    every = aggregate([(task, 1.0, True) for task in range(9) for _ in range(8)]).pass_hat_k()
    assert every["pass_hat_k"]["8"] == 1.0
    low, high = every["pass_hat_k_intervals"]["8"]
    assert low < 0.75 and high == 1.0


def test_k_goes_over_powers_of_two_and_the_most_there_is() -> None:
    assert list(aggregate([(0, 1.0, True)] * 6).pass_at_k()) == ["1", "2", "4", "6"]
    assert aggregate([]).pass_at_k() == {}


def test_the_threshold_decides_what_passes() -> None:
    found = Aggregate(pass_threshold=0.25)
    for reward in (0.25, 0.0):
        found.add(rollout_of(line(0, reward)))
    assert found.pass_at_k()["1"] == 0.5


def test_the_interval_is_clustered_by_task() -> None:
    """Identical repeats of a task are no more evidence than one of them."""
    once = aggregate([(task, float(task % 2), True) for task in range(6)])
    repeated = aggregate([(task, float(task % 2), True) for task in range(6) for _ in range(9)])
    assert once.interval("reward") == pytest.approx(repeated.interval("reward"))
    rng = random.Random(1)
    covered = 0
    for _ in range(300):
        chances = [rng.random() for _ in range(40)]
        sample = [
            (t, float(rng.random() < p), True) for t, p in enumerate(chances) for _ in range(4)
        ]
        low, high = aggregate(sample).interval("reward") or [0, 0]
        covered += low <= 0.5 <= high
    assert 0.90 <= covered / 300 <= 0.99


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1), min_size=2, max_size=9))
def test_the_interval_of_rewards_from_0_to_1_stays_there_and_holds_the_mean(
    tasks: list[list[float]],
) -> None:
    found = aggregate(
        [(task, each, True) for task, rewards in enumerate(tasks) for each in rewards]
    )
    low, high = found.interval("reward") or [-1, -1]
    mean = statistics.mean(each for rewards in tasks for each in rewards)
    assert 0 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1


def test_the_interval_of_few_rewards_is_wilson_s() -> None:
    all_passed = aggregate([(task, 1.0, True) for task in range(4)])
    assert all_passed.interval("reward") == pytest.approx([0.5101, 1.0], abs=1e-4)
    # three of four, the standard error estimated from four: as three independent ones would have
    some = aggregate([(task, float(task > 0), True) for task in range(4)])
    assert some.interval("reward") == pytest.approx(wilson(0.75, 3), abs=1e-4)
    # one of two in every task: no less certain than eight independent rollouts
    even = aggregate([(task, float(half), True) for task in range(4) for half in range(2)])
    assert even.interval("reward") == pytest.approx(wilson(0.5, 8), abs=1e-4)


def test_the_interval_of_other_rewards_is_the_normal_one() -> None:
    found = aggregate([(task, reward, True) for task, reward in enumerate([-1.0, 1.0, 2.0, 2.0])])
    low, high = found.interval("reward") or [0, 0]
    error = math.sqrt(2.0 / 4)  # the sample's variance is 2
    assert (low, high) == pytest.approx((1 - 1.96 * error, 1 + 1.96 * error))


def wilson(p: float, n: float, z: float = 1.96) -> list[float]:
    """The two p' that the score test of p over n just accepts: (p − p')² = z² p'(1 − p')/n."""
    a, b, c = 1 + z * z / n, -(2 * p + z * z / n), p * p
    root = math.sqrt(b * b - 4 * a * c)
    return [(-b - root) / (2 * a), (-b + root) / (2 * a)]


def test_a_single_task_has_no_interval() -> None:
    assert aggregate([(0, 1.0, True)]).interval("reward") is None


def test_the_bracket_says_what_missing_rollouts_could_change() -> None:
    found = report([line(0, 1.0), line(1, 0.5)], planned=4)
    assert found["bracket"] == {"reward": [1.5 / 4, 3.5 / 4]}
    assert found["throughput"] == {"elapsed_s": 4.0}


def test_the_report_has_the_means_of_what_the_verifier_set_and_nothing_else() -> None:
    found = report([line(0, 1.0, True), line(0, 0.0, False)], planned=2)
    assert found["metrics"] == {"reward": 0.5, "accurate": 0.5, "num_turns": 2.0}
    assert found["usage"] == {"input_tokens": 6, "output_tokens": 4, "total_tokens": 10}
    [agent] = found["agents"]
    assert agent["key_metrics"]["mean/reward"] == 0.5
    assert agent["agent_metrics"]["std/reward"] == pytest.approx(math.sqrt(0.5))
    [group] = agent["group_level_metrics"]
    assert group["num_rollouts"] == 2 and group["expected_num_rollouts"] == 2


def test_rollouts_without_a_reward_stay_out_of_the_reward_s_metrics() -> None:
    found = report([line(0, None), line(1, 1.0)], planned=2)
    assert found["metrics"]["reward"] == 1.0 and found["counts"]["rollouts"] == 2


def test_nothing_at_all_is_a_report_too() -> None:
    found = report([], planned=3)
    assert found["metrics"] == found["pass_at_k"] == found["bracket"] == {}


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_within_one_percent(values: list[float], fraction: float) -> None:
    sketch = Sketch()
    for value in values:
        sketch.extend([value])
    rank = fraction * (len(values) - 1)
    low, high = sorted(values)[int(rank)], sorted(values)[math.ceil(rank)]
    between = low + (rank - int(rank)) * (high - low)
    assert sketch.quantile(fraction) == pytest.approx(between, rel=0.0101)


def test_a_quantile_of_few_values_lies_between_its_neighbours() -> None:
    sketch = Sketch()
    for value in (0.0, 1.0, 3.0, 10.0):
        sketch.extend([value])
    assert sketch.quantile(0.5) == pytest.approx(2.0, rel=0.01)
    assert sketch.summary()["p95"] == pytest.approx(3.0 + 0.85 * 7.0, rel=0.01)
    two = Sketch()
    two.extend([1.0, 2.0])
    assert two.quantile(0.5) == pytest.approx(1.5, rel=0.01)


def test_the_share_that_max_steps_ended_is_told() -> None:
    ends = ["max_steps", "stop", "max_steps", "max_output_tokens"]
    found = report([line(task, 1.0, finish_reason=end) for task, end in enumerate(ends)], 4)
    assert found["rates"] == {"cut_off": 0.25, "max_steps": 0.5}
