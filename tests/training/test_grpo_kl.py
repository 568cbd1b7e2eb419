"""examples/grpo: the KL term of the loss, against a computation by hand."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from support import skip_unless_installed

skip_unless_installed("torch", "transformers")

pytestmark = pytest.mark.trainers

ROOT = Path(__file__).resolve().parents[2]

VOCABULARY = 7


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("grpo_train", ROOT / "examples/grpo/train.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_model(seed: int) -> Any:
    import torch

    class Table(torch.nn.Module):
        """The next token depends on the last one alone."""

        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
            self.table = torch.nn.Parameter(drawn)

        def forward(self, input_ids: Any, use_cache: bool = False) -> Any:
            class Output:
                logits = self.table[input_ids]

            return Output()

    return Table()


def score(model: Any, row: Any) -> list[float]:
    """The log-prob of each sampled token, by hand."""
    found = []
    for before, token, is_sampled in zip(
        row.token_ids, row.token_ids[1:], row.mask[1:], strict=False
    ):
        logits = [float(each) for each in model.table.detach()[before]]
        total = math.log(sum(math.exp(each) for each in logits))
        if is_sampled:
            found.append(logits[token] - total)
    return found


ESTIMATES = {
    "k1": lambda own, other: own - other,
    "k2": lambda own, other: (own - other) ** 2 / 2,
    "k3": lambda own, other: math.exp(other - own) - 1 - (other - own),
}


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_the_term_is_the_one_by_hand(estimate: str) -> None:
    example = load_example()
    policy, reference = make_model(0), make_model(1)

    def make_row(ids: list[int], mask: list[int], advantage: float) -> Any:
        class Row:
            token_ids = ids

        row = Row()
        row.mask, row.advantage = mask, advantage  # type: ignore[attr-defined]
        row.log_probs = [0.0] * len(ids)  # type: ignore[attr-defined]
        return row

    rows = [make_row([1, 2, 3, 4, 5], [0, 0, 1, 1, 1], 0.7), make_row([6, 0, 2], [0, 1, 1], -0.4)]
    by_hand = [
        ESTIMATES[estimate](own, other)
        for row in rows
        for own, other in zip(score(policy, row), score(reference, row), strict=True)
    ]
    plain, figures = example.loss_of(policy, rows)
    assert "kl/mean" not in figures
    for coefficient in (0.0, 0.1):
        penalty = example.Penalty(reference, coefficient, estimate)
        loss, figures = example.loss_of(policy, rows, penalty)
        assert figures["kl/mean"] == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)
        expected = float(plain.detach()) + coefficient * sum(by_hand)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
