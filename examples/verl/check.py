"""As far as a CPU goes: verl reads the settings and the data, and computes advantages and the loss
of rollouts that the tiny model has made.

python examples/verl/check.py [--folder results/verl]
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from hydra import compose, initialize_config_module
from transformers import AutoTokenizer
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_policy_loss_vanilla,
)
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

import rollout_kit as rk
from rollout_kit.rl import read_group
from rollout_kit.rl.rows import TrainingRow, group_name

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "responses_api_models/local_model/checkpoint"

TASKS, MEMBERS = 8, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("results/verl"))
    args = parser.parse_args()
    settings = (Path(__file__).parent / "settings.txt").read_text().split()
    settings.append(f"data.train_files={args.folder}/train.jsonl")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", settings)
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    data = RLHFDataset(config.data.train_files, tokenizer, config.data)
    batch = collate_fn([data[at] for at in range(TASKS)])
    tasks = [json.loads(info["row"]) for info in batch["extra_info"]]
    print(f"settings: all {len(settings)} are known; data: {len(data):,} tasks")
    rows = roll_out(tasks, args.folder / "checked.jsonl")
    advantages, mask = compute_advantages(rows)
    old = pad([row.log_probs[row.mask.index(1) :] for row in rows])
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, figures = compute_policy_loss_vanilla(old, old, advantages, mask, config=actor)
    assert torch.isfinite(loss)
    print(f"{len(rows)} rollouts; loss {float(loss):+.4f}, {figures}")


def roll_out(tasks: Sequence[Any], output: Path) -> list[TrainingRow]:
    params = {"return_token_ids": True, "temperature": 1}
    output.unlink(missing_ok=True)
    run = rk.collect_sync(
        ROOT / "configs/demo.yaml",
        tasks,
        output=output,
        num_repeats=MEMBERS,
        responses_create_params=params,
    )
    groups: dict[str, list[Any]] = {}
    for outcome in run:
        if isinstance(outcome, rk.Rollout):
            groups.setdefault(group_name(outcome), []).append(outcome)
    return [row for group in groups.values() for row in read_group(group).rows]


def compute_advantages(rows: Sequence[TrainingRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """By verl's own code: the reward is that of the last token of a response."""
    mask = pad([row.mask[row.mask.index(1) :] for row in rows])
    rewards = torch.zeros_like(mask)
    for number, row in enumerate(rows):
        rewards[number, len(row.mask) - row.mask.index(1) - 1] = row.reward or 0.0
    groups = numpy.array([row.group_id for row in rows])
    return compute_grpo_outcome_advantage(rewards, mask, groups)[0], mask


def pad(lists: Sequence[Sequence[float]]) -> torch.Tensor:
    found = torch.zeros(len(lists), max(map(len, lists)))
    for number, values in enumerate(lists):
        found[number, : len(values)] = torch.tensor(values)
    return found


if __name__ == "__main__":
    main()
