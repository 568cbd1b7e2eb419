"""examples/grpo: the KL term in the loss and in the reward, against computations by hand."""

import math
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import skip_unless_installed
from table_policy import (
    VOCABULARY,
    list_sampled_pairs,
    load_example,
    make_model,
    make_row,
    read_table,
    score_token,
)

skip_unless_installed("torch", "transformers")

pytestmark = pytest.mark.trainers

RATE = 0.5

ESTIMATES = {
    "k1": lambda own, other: own - other,
    "k2": lambda own, other: (own - other) ** 2 / 2,
    "k3": lambda own, other: math.exp(other - own) - 1 - (other - own),
}

SLOPES = {
    "k1": lambda own, other: 1.0,
    "k2": lambda own, other: own - other,
    "k3": lambda own, other: 1 - math.exp(other - own),
}
"""The derivatives of the estimates by the own log-prob."""

Table = list[list[float]]


def draw_rows(table: Table) -> list[Any]:
    return [
        make_row([1, 2, 3, 4, 5], [0, 0, 1, 1, 1], table, advantage=0.7),
        make_row([6, 0, 2], [0, 1, 1], table, advantage=-0.4),
    ]


def list_kl(rows: list[Any], table: Table, reference: Table, estimate: str) -> list[float]:
    return [
        ESTIMATES[estimate](score_token(table, *pair), score_token(reference, *pair))
        for row in rows
        for pair in list_sampled_pairs(row)
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def sample(losses: Any, row: Any) -> Any:
    return losses.Sample(row, [row.advantage] * len(row.token_ids))


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_the_term_of_the_loss_is_the_one_by_hand(estimate: str) -> None:
    losses = load_example("grpo/losses.py")
    policy, reference = make_model(0), make_model(1)
    rows = draw_rows(read_table(policy))
    samples = [sample(losses, row) for row in rows]
    by_hand = list_kl(rows, read_table(policy), read_table(reference), estimate)
    plain, figures = losses.compute_policy_loss(policy, samples)
    assert "kl/mean" not in figures
    for coefficient in (0.0, 0.1):
        penalty = losses.Penalty(reference, coefficient, estimate)
        loss, figures = losses.compute_policy_loss(policy, samples, penalty)
        assert figures["kl/mean"] == pytest.approx(mean(by_hand), rel=1e-5)
        assert figures["kl/max"] == pytest.approx(max(by_hand), rel=1e-5)
        expected = float(plain.detach()) + coefficient * sum(by_hand)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def step_by_hand(
    rows: list[Any], table: Table, reference: Table, estimate: str, coefficient: float
) -> Table:
    """The table after one step along the gradient of all rows. The ratio is 1 at first."""
    changed = [list(row) for row in table]
    pairs = [(row.advantage, pair) for row in rows for pair in list_sampled_pairs(row)]
    for advantage, (before, token) in pairs:
        own, other = score_token(table, before, token), score_token(reference, before, token)
        slope = -advantage + coefficient * SLOPES[estimate](own, other)
        for each in range(VOCABULARY):
            of_token = float(each == token) - math.exp(score_token(table, before, each))
            changed[before][each] -= RATE / len(pairs) * slope * of_token
    return changed


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_a_step_with_and_without_the_term_ends_where_it_does_by_hand(
    estimate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    losses, found = load_example("grpo/losses.py"), []
    monkeypatch.setattr(losses, "MINIBATCHES", 1)
    monkeypatch.setattr(losses, "MAX_NORM", math.inf)
    for coefficient in (0.0, 0.1):
        policy, reference = make_model(0), make_model(1)
        table, other = read_table(policy), read_table(reference)
        rows = draw_rows(table)
        samples = [sample(losses, row) for row in rows]
        penalty = losses.Penalty(reference, coefficient, estimate)
        optimizer = torch.optim.SGD(policy.parameters(), lr=RATE)
        compute = partial(losses.compute_policy_loss, policy, penalty=penalty)
        losses.train_minibatches(policy, optimizer, samples, random.Random(0), compute)
        figures = losses.compute_policy_loss(policy, samples, penalty)[1]
        by_hand = step_by_hand(rows, table, other, estimate, coefficient)
        expected = mean(list_kl(rows, by_hand, other, estimate))
        assert figures["kl/mean"] == pytest.approx(expected, rel=1e-4)
        found.append(figures["kl/mean"])
    without, with_term = found
    assert with_term < without - 1e-4


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_the_term_of_the_reward_changes_the_advantages_as_by_hand(
    estimate: str, coefficient: float
) -> None:
    example, losses = load_example("grpo/train.py"), load_example("grpo/losses.py")
    policy, reference = make_model(0), make_model(1)
    rows = draw_rows(read_table(policy))
    rollouts = [
        SimpleNamespace(reward=reward, rows=[row], advantage=advantage)
        for row, reward, advantage in zip(rows, (1.0, 0.0), (1.0, -1.0), strict=True)
    ]
    rollouts.append(SimpleNamespace(reward=None, rows=[], advantage=0.0))
    penalty = losses.Penalty(reference, coefficient, estimate, is_in_reward=True)
    own = [sum(list_kl([row], read_table(policy), read_table(reference), estimate)) for row in rows]
    first, second = 1.0 - coefficient * own[0], 0.0 - coefficient * own[1]
    sign = math.copysign(1, first - second)
    samples = example.make_samples(SimpleNamespace(rollouts=rollouts), penalty)
    assert [each.advantages[-1] for each in samples] == pytest.approx([sign, -sign], rel=1e-5)
    taken = [example.sum_penalty([row], penalty) for row in rows]
    assert taken == pytest.approx([coefficient * each for each in own], rel=1e-5)
    plain, _ = losses.compute_policy_loss(policy, samples)
    loss, figures = losses.compute_policy_loss(policy, samples, penalty)
    assert float(loss.detach()) == float(plain.detach()) and "kl/mean" in figures


@pytest.mark.parametrize(("coefficient", "expected"), [(0.1, 2), (0.0, 1), (None, 1)])
def test_the_term_of_the_loss_counts_rows_without_an_advantage(
    coefficient: float | None, expected: int
) -> None:
    """A rollout without a reward takes no part."""
    example, losses = load_example("grpo/train.py"), load_example("grpo/losses.py")
    rows = draw_rows(read_table(make_model(0)))
    rollouts = [
        SimpleNamespace(reward=1.0, rows=[rows[0]], advantage=0.0),
        SimpleNamespace(reward=2.0, rows=[rows[1]], advantage=1.0),
        SimpleNamespace(reward=None, rows=[rows[1]], advantage=0.0),
    ]
    penalty = None
    if coefficient is not None:
        penalty = losses.Penalty(make_model(1), coefficient)
    samples = example.make_samples(SimpleNamespace(rollouts=rollouts), penalty)
    assert len(samples) == expected


def test_rows_without_a_token_to_train_on_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing predicts the first token of a row, so it counts for no mean either."""
    import torch

    losses = load_example("grpo/losses.py")
    monkeypatch.setattr(losses, "MICROBATCH", 1)
    found = []
    for more in ([], [([1, 0, 0], 0.5), ([0, 0, 0], 0.5)]):
        policy = make_model(0)
        table = read_table(policy)
        rows = [*draw_rows(table), *(make_row([1, 2, 3], m, table, advantage=a) for m, a in more)]
        penalty = losses.Penalty(make_model(1), 0.1)
        compute = partial(losses.compute_policy_loss, policy, penalty=penalty)
        optimizer = torch.optim.SGD(policy.parameters(), lr=RATE)
        samples = [sample(losses, row) for row in rows]
        figures, norm = losses.train_minibatches(
            policy, optimizer, samples, random.Random(0), compute
        )
        found.append((figures, norm, read_table(policy)))
    assert found[0] == found[1]
    loss, figures = compute(samples[2:])
    assert float(loss.detach()) == 0 and figures == {}
    assert losses.train_minibatches(policy, optimizer, samples[2:], random.Random(0), compute) == (
        {},
        None,
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_reference_of_a_lora_is_the_model_without_it(tmp_path: Path) -> None:
    skip_unless_installed("peft")
    import torch

    example, losses = load_example("grpo/train.py"), load_example("grpo/losses.py")
    args = SimpleNamespace(
        base=example.BASE, lora=4, kl=0.1, kl_estimate="k3", kl_in="loss", rate=1e-3, steps=2
    )
    model, ids = example.load_model(args), torch.tensor([[5, 6, 7, 8]])
    before = losses.find_log_probs(model, ids)[1].detach()
    learner = example.GrpoLearner(args, model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value += 0.1
    after = losses.find_log_probs(model, ids)[1].detach()
    assert (after - before).abs().max() > 0.01
    reference = losses.find_log_probs(learner.penalty.reference, ids)[1].detach()
    assert torch.equal(reference, before)
    manager = example.CheckpointManager(tmp_path)
    manager.save(model, learner, 1, {}, {})
    again = example.load_model(args)
    assert example.CheckpointManager(tmp_path).resume(again, example.GrpoLearner(args, again)) == 1
    assert torch.equal(losses.find_log_probs(again, ids)[1].detach(), after)
