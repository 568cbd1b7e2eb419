"""Write two files of tasks: three-digit sums to learn from, and others to test with.

python examples/grpo/tasks.py FOLDER [--train 4000] [--test 192] [--seed 0]
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parents[2] / "responses_api_models/local_model"
sys.path.insert(0, str(MODEL / "training"))

import problems  # noqa: E402  the problems that the tiny model was trained on

LEVEL = 3
"""Digits of the largest number."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=4000, help="number of tasks to learn from")
    parser.add_argument("--test", type=int, default=192, help="number of tasks to test with")
    parser.add_argument("--seed", type=int, default=0, help="draws other tasks to learn from")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write(args.folder / "train.jsonl", args.train, held_out=False, seed=f"train {args.seed}")
    write(args.folder / "test.jsonl", args.test, held_out=True, seed="test of the GRPO example")


def write(path: Path, number: int, *, held_out: bool, seed: str) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in draw(number, held_out, seed)))


def draw(number: int, held_out: bool, seed: str) -> Iterator[dict[str, Any]]:
    """So many different tasks. Those that are held out have numbers that the model never saw, and
    none of them is in the task files that it comes with."""
    rng = random.Random(seed)
    shipped = (MODEL / "data/arithmetic.jsonl").read_text().splitlines()
    seen = {json.loads(line)["question"] for line in shipped}
    while number:
        problem = problems.draw(rng, "arithmetic", held_out=held_out, levels=(LEVEL,))
        if problem.question in seen:
            continue
        seen.add(problem.question)
        number -= 1
        yield {
            "responses_create_params": {"input": [{"role": "user", "content": problem.text}]},
            "question": problem.question,
            "expected_answer": problem.value,
        }


if __name__ == "__main__":
    main()
