"""examples/ppo: rewards of tokens, advantages and value loss against computations by hand, and a
value model that learns what is to be expected."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import skip_unless_installed
from table_policy import list_sampled_pairs, load_example, make_model, make_row, read_table
from table_policy import score_token as score

ROOT = Path(__file__).resolve().parents[2]

skip_unless_installed("torch", "transformers")

pytestmark = pytest.mark.trainers

MASK = [0, 1, 1, 0, 1]


def estimate_by_definition(
    rewards: list[float], values: list[float], discount: float, trace: float
) -> list[float]:
    """The sum of all later errors of the values, each with its weight."""
    later = [*values[1:], 0.0]
    errors = [r + discount * v - now for r, v, now in zip(rewards, later, values, strict=True)]
    return [
        sum((discount * trace) ** (at - start) * errors[at] for at in range(start, len(errors)))
        for start in range(len(errors))
    ]


@pytest.mark.parametrize(("discount", "trace"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0)])
def test_advantages_are_those_of_the_definition_over_sampled_tokens(
    discount: float, trace: float
) -> None:
    example = load_example("ppo/train.py")
    rewards, values = [9.0, 0.1, 0.0, 9.0, 1.0], [9.0, 0.5, 0.2, 9.0, 0.7]
    found = example.estimate_advantages(MASK, rewards, values, discount, trace)
    by_hand = estimate_by_definition([0.1, 0.0, 1.0], [0.5, 0.2, 0.7], discount, trace)
    assert [found[at] for at in (1, 2, 4)] == pytest.approx(by_hand)
    assert found[0] == found[3] == 0.0


@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_kl_in_the_reward_is_taken_from_each_token(coefficient: float) -> None:
    example, losses = load_example("ppo/train.py"), load_example("grpo/losses.py")
    table, other = read_table(make_model(0)), read_table(make_model(1))
    row = make_row([1, 2, 3, 4, 5], MASK, table, reward=0.8)
    penalty = losses.Penalty(make_model(1), coefficient, "k1", is_in_reward=True)
    by_hand = [
        -coefficient * (score(table, *pair) - score(other, *pair))
        for pair in list_sampled_pairs(row)
    ]
    by_hand[-1] += 0.8
    [found] = example.place_rewards([row], penalty)
    assert [found[at] for at in (1, 2, 4)] == pytest.approx(by_hand, abs=1e-6)
    assert found[0] == found[3] == 0.0
    assert example.place_rewards([row], None) == [[0.0, 0.0, 0.0, 0.0, 0.8]]


def test_the_loss_of_values_is_clipped_as_by_hand() -> None:
    import torch

    example, losses = load_example("ppo/train.py"), load_example("grpo/losses.py")
    row = make_row([1, 2, 3], [0, 1, 1], read_table(make_model(0)))
    sample = losses.Sample(row, [0.0] * 3, [0.0, 0.1, 0.9], [0.0, 1.0, 1.0])

    def give(ids: Any) -> Any:
        return torch.tensor([[0.6, 0.95]])

    loss, figures = example.compute_value_loss(give, [sample])
    errors = [max((0.6 - 1) ** 2, (0.3 - 1) ** 2), (0.95 - 1) ** 2]  # 0.1 moves by 0.2 at most
    assert float(loss) == pytest.approx(sum(errors) / 2)
    assert figures["value/loss"] == pytest.approx(sum(errors) / 4)


def test_the_value_model_learns_which_rows_are_rewarded() -> None:
    """Rows that begin with one token are rewarded, the others not."""
    example = load_example("ppo/train.py")
    base = ROOT / "responses_api_models/local_model/checkpoint"
    args = SimpleNamespace(
        base=base, lora=0, kl=None, rate=1e-3, steps=20, value_rate=2e-3, discount=1.0, trace=0.95
    )
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # threads that spin would wait for each other
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    learner, rng = example.PpoLearner(args, model), random.Random(0)
    losses = load_example("grpo/losses.py")
    explained = []
    for step in range(1, 9):
        rows = []
        for number in range(8):
            ids = [5 + number % 2, *(rng.randrange(10, 60) for _ in range(5))]
            row = make_row(ids, [0, 0, 1, 1, 1, 1], [[0.0] * 64] * 64, reward=float(number % 2))
            log_probs = losses.find_log_probs(model, torch.tensor([ids]))[1].tolist()[0]
            rows.append(replace(row, log_probs=[0.0, 0.0, *log_probs[1:]]))
        figures = learner.update(step, [SimpleNamespace(rows=rows)], rng)
        explained.append(figures["value/explained_var"])
    assert explained[0] == pytest.approx(0, abs=0.2) and explained[-1] > 0.5
    untrained = replace(rows[0], mask=[0] * 6)  # all of its tokens are too old
    assert learner.update(9, [SimpleNamespace(rows=[untrained])], rng) == {}
    again = example.PpoLearner(args, model)
    again.load_state_dict(learner.state_dict())
    assert example.find_values(again.values, rows) == example.find_values(learner.values, rows)


def test_the_loop_trains_a_value_model(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "examples/grpo/demo.py", "--algorithm", "ppo", "--steps", "2"]
    done = subprocess.run(
        [*words, "--test", "4", "--folder", tmp_path], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    for figures in map(json.loads, lines):
        assert {"value/loss", "value/explained_var", "policy/grad_norm"} <= figures.keys()
        phases = [figures[f"time/{name}_s"] for name in ("wait", "update", "save", "sync")]
        assert min(phases) >= 0 and sum(phases) <= figures["time/step_s"]
