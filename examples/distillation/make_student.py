"""Write a worse copy of the tiny model, for a student: noise is added to its matrices.

python examples/distillation/make_student.py FOLDER [--noise 0.15] [--seed 0]
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from rollout_kit.rl import CheckpointManager

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "responses_api_models/local_model/checkpoint"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--noise", type=float, default=0.15, help="share of a matrix' deviation")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    disable_progress_bar()
    torch.manual_seed(args.seed)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 2:
                value += args.noise * value.std() * torch.randn_like(value)
    CheckpointManager(args.folder, base=BASE).save(model)


if __name__ == "__main__":
    main()
