"""Write two files of tasks: sums to learn from, and three-digit sums to test with, and the
evaluation set of the latter.

python examples/grpo/tasks.py FOLDER [--train 4000] [--levels 3] [--test 192] [--seed 0]
"""

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parents[2] / "responses_api_models/local_model"
sys.path.insert(0, str(MODEL / "training"))

import problems  # noqa: E402  the problems that the tiny model was trained on

AGENT = "math_with_verify_simple_agent"

LEVEL = 3
"""Digits of the largest number."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=4000, help="number of tasks to learn from")
    parser.add_argument("--levels", type=int, nargs="+", default=[LEVEL], help="digits of them")
    parser.add_argument("--test", type=int, default=192, help="number of tasks to test with")
    parser.add_argument("--seed", type=int, default=0, help="draws other tasks to learn from")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    folder = args.folder.resolve()
    train = draw(args.train, False, f"train {args.seed}", args.levels)
    write(folder / "train.jsonl", train)
    write(folder / "test.jsonl", draw(args.test, True, "test of the GRPO example", [LEVEL]))
    test = {"input_jsonl_fpath": str(folder / "test.jsonl"), "agent_name": AGENT}
    params = {"temperature": 1, "max_output_tokens": 96}
    sets = {"sums": {**test, "num_repeats": 2, "responses_create_params": params}}
    (folder / "eval.yaml").write_text(json.dumps({"sets": sets}, indent=1))  # JSON is YAML


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def draw(number: int, held_out: bool, seed: str, levels: Sequence[int]) -> Iterator[dict[str, Any]]:
    """So many different tasks. Those that are held out have numbers that the model never saw, and
    none of them is in the task files that it comes with."""
    rng = random.Random(seed)
    shipped = (MODEL / "data/arithmetic.jsonl").read_text().splitlines()
    seen = {json.loads(line)["question"] for line in shipped}
    while number:
        problem = problems.draw(rng, "arithmetic", held_out=held_out, levels=levels)
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
