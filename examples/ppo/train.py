"""PPO: as examples/grpo/train.py, but the advantage of each token comes from a value model (GAE).

python examples/ppo/train.py --buffer http://127.0.0.1:9500 --head http://127.0.0.1:11000
"""

import argparse
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grpo"))

import torch
from losses import (
    MICROBATCH,
    Figures,
    Penalty,
    Sample,
    compute_policy_loss,
    cut,
    estimate_row_kl,
    pad,
    pad_values,
    train_minibatches,
)
from train import Optimizers, make_parser, make_penalty, run
from transformers import AutoModel

from rollout_kit.rl.rows import GroupRecord, TrainingRow

CLIP_VALUE = 0.2
"""A value is moved at most so far from what it was, as far as that makes the loss smaller."""


class ValueModel(torch.nn.Module):
    """A copy of the first model, with a head that gives a number at each token: the reward that is
    expected from there on."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.trunk = AutoModel.from_pretrained(base, dtype=torch.float32)
        self.head = torch.nn.Linear(self.trunk.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The value before each token after the first."""
        hidden = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        return self.head(hidden[:, :-1]).squeeze(-1)


class PpoLearner:
    """Trains the value model on the returns of a step, and the policy on its advantages."""

    def __init__(self, args: argparse.Namespace, model: torch.nn.Module) -> None:
        self.args, self.model, self.penalty = args, model, make_penalty(args, model)
        self.values = ValueModel(args.base)
        self.optimizers = Optimizers(model, args.rate, args.steps)
        self.value_optimizer = torch.optim.AdamW(
            self.values.parameters(), lr=args.value_rate, weight_decay=0.0
        )

    def update(self, step: int, groups: Sequence[GroupRecord], rng: random.Random) -> Figures:
        self.optimizers.begin(step)
        rows = [row for group in groups for row in group.rows if row.reward is not None]
        if not (rows := [row for row in rows if any(row.mask)]):
            return {}
        samples = self.make_samples(rows)
        figures, _ = train_minibatches(
            self.values,
            self.value_optimizer,
            samples,
            rng,
            partial(compute_value_loss, self.values),
        )
        compute = partial(compute_policy_loss, self.model, penalty=self.penalty)
        more, norm = train_minibatches(self.model, self.optimizers, whiten(samples), rng, compute)
        if norm is not None:
            more["policy/grad_norm"] = norm
        return figures | more | measure_values(samples)

    def make_samples(self, rows: Sequence[TrainingRow]) -> list[Sample]:
        """Rows with the advantage and the return of each token."""
        values = find_values(self.values, rows)
        rewards = place_rewards(rows, self.penalty)
        samples: list[Sample] = []
        for row, old, given in zip(rows, values, rewards, strict=True):
            gained = estimate_advantages(row.mask, given, old, self.args.discount, self.args.trace)
            returns = [gain + value for gain, value in zip(gained, old, strict=True)]
            samples.append(Sample(row, gained, old, returns))
        return samples

    def state_dict(self) -> dict[str, Any]:
        parts = {"policy": self.optimizers, "values": self.values, "value": self.value_optimizer}
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizers.load_state_dict(state["policy"])
        self.values.load_state_dict(state["values"])
        self.value_optimizer.load_state_dict(state["value"])


def find_values(model: ValueModel, rows: Sequence[TrainingRow]) -> list[list[float]]:
    found: list[list[float]] = []
    for start in range(0, len(rows), MICROBATCH):
        part = rows[start : start + MICROBATCH]
        padded = pad(part)
        with torch.no_grad():
            found += cut(model(padded.ids) * padded.mask, part)
    return found


def place_rewards(rows: Sequence[TrainingRow], penalty: Penalty | None) -> list[list[float]]:
    """The reward of each token: that of the rollout at its last one, less the KL term at each, if
    it is in the reward."""
    if penalty is not None and penalty.is_in_reward:
        kl = estimate_row_kl(rows, penalty)
        found = [[-penalty.coefficient * each for each in row] for row in kl]
    else:
        found = [[0.0] * len(row.token_ids) for row in rows]
    for row, given in zip(rows, found, strict=True):
        last = max(at for at, is_sampled in enumerate(row.mask) if is_sampled)
        given[last] += row.reward or 0.0
    return found


def estimate_advantages(
    mask: Sequence[int],
    rewards: Sequence[float],
    values: Sequence[float],
    discount: float,
    trace: float,
) -> list[float]:
    """Generalized advantage estimation over the tokens that the policy sampled; 0 at the others,
    such as outputs of tools, which are no actions."""
    found = [0.0] * len(mask)
    next_value = next_advantage = 0.0
    for at in reversed(range(len(mask))):
        if mask[at]:
            error = rewards[at] + discount * next_value - values[at]
            found[at] = next_advantage = error + discount * trace * next_advantage
            next_value = values[at]
    return found


def whiten(samples: Sequence[Sample]) -> list[Sample]:
    """The advantages of all sampled tokens with mean 0 and standard deviation 1."""
    gained = list_sampled((sample.advantages, sample.row) for sample in samples)
    mean, spread = statistics.fmean(gained), statistics.pstdev(gained) + 1e-8
    return [
        sample._replace(advantages=[(each - mean) / spread for each in sample.advantages])
        for sample in samples
    ]


def list_sampled(pairs: Iterable[tuple[Sequence[float], TrainingRow]]) -> list[float]:
    """The numbers of the tokens that were sampled."""
    return [
        value
        for values, row in pairs
        for value, is_sampled in zip(values, row.mask, strict=True)
        if is_sampled
    ]


def compute_value_loss(model: ValueModel, part: Sequence[Sample]) -> tuple[torch.Tensor, Figures]:
    """The clipped squared error, summed over tokens."""
    ids, _, mask = pad([sample.row for sample in part])
    old = pad_values([sample.old_values for sample in part])[:, 1:]
    returns = pad_values([sample.returns for sample in part])[:, 1:]
    values = model(ids)
    clipped = old + (values - old).clamp(-CLIP_VALUE, CLIP_VALUE)
    worst = torch.maximum((values - returns).square(), (clipped - returns).square())
    loss = (worst * mask).sum() / 2
    return loss, {"value/loss": float(loss.detach() / mask.sum())}


def measure_values(samples: Sequence[Sample]) -> Figures:
    """How much of the variance of the returns the values had explained before this step."""
    errors = list_sampled((sample.advantages, sample.row) for sample in samples)
    returns = list_sampled((sample.returns, sample.row) for sample in samples)
    spread = statistics.pvariance(returns)
    explained = 1 - statistics.pvariance(errors) / spread if spread else 0.0
    return {"value/mean": statistics.fmean(returns), "value/explained_var": explained}


def main() -> None:
    parser = make_parser()
    parser.set_defaults(folder=Path("results/ppo"))
    parser.add_argument("--value-rate", type=float, default=1e-3)
    parser.add_argument("--discount", type=float, default=1.0, help="of later rewards (gamma)")
    parser.add_argument("--trace", type=float, default=0.98, help="lambda of GAE")
    run(parser, PpoLearner)


if __name__ == "__main__":
    main()
