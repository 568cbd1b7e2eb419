"""On-policy distillation: as examples/grpo/train.py, but the student learns from each of its tokens
how likely a teacher finds it. The rollouts come from a collection with `+teacher=teacher_model`.

python examples/distillation/train.py --buffer http://127.0.0.1:9500 --head http://127.0.0.1:11000
"""

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "grpo"))

import torch
from losses import Figures, Sample, compute_policy_loss, train_minibatches
from train import Optimizers, make_parser, make_penalty, run

from rollout_kit.rl.rows import GroupRecord, TrainingRow


class DistillationLearner:
    """The advantage of a token is what the teacher's log-prob has over the student's: the gradient
    is that of the KL divergence from the student to the teacher, on the student's own tokens."""

    def __init__(self, args: argparse.Namespace, model: torch.nn.Module) -> None:
        self.model, self.penalty = model, make_penalty(args, model)
        self.optimizers = Optimizers(model, args.rate, args.steps)

    def update(self, step: int, groups: Sequence[GroupRecord], rng: random.Random) -> Figures:
        self.optimizers.begin(step)
        samples = [make_sample(row) for group in groups for row in group.rows]
        compute = partial(compute_policy_loss, self.model, penalty=self.penalty)
        figures, norm = train_minibatches(self.model, self.optimizers, samples, rng, compute)
        if norm is not None:
            figures["policy/grad_norm"] = norm
        return figures | measure_divergence(samples)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizers.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizers.load_state_dict(state)


def make_sample(row: TrainingRow) -> Sample:
    if not row.teacher_log_probs:
        raise SystemExit("the rollouts have no teacher: add +teacher=… to the collection")
    pairs = zip(row.teacher_log_probs, row.log_probs, strict=True)
    return Sample(row, [teacher - own for teacher, own in pairs])


def measure_divergence(samples: Sequence[Sample]) -> Figures:
    """The mean over the sampled tokens of the student's log-prob less the teacher's; no figure if
    nothing was sampled."""
    gained = [
        gain
        for sample in samples
        for gain, is_sampled in zip(sample.advantages, sample.row.mask, strict=True)
        if is_sampled
    ]
    return {"teacher/kl": -statistics.fmean(gained)} if gained else {}


def main() -> None:
    parser = make_parser()
    parser.set_defaults(folder=Path("results/distillation"))
    run(parser, DistillationLearner)


if __name__ == "__main__":
    main()
