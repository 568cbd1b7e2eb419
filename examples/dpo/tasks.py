"""Write two files of tasks: sums to learn from, and sums that no training has seen.

python examples/dpo/tasks.py FOLDER [--train 1200] [--test 512]
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "responses_api_models/local_model/training"))

import problems  # noqa: E402  the problems that the tiny model was trained on


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=1200, help="number of tasks to learn from")
    parser.add_argument("--test", type=int, default=512, help="number of tasks to test with")
    parser.add_argument("--seed", type=int, default=2026)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, number in (("train", args.train), ("test", args.test)):
        rows = draw(number, held_out=name == "test", seed=args.seed)
        lines = (json.dumps(row) + "\n" for row in rows)
        (args.folder / f"{name}.jsonl").write_text("".join(lines))


def draw(number: int, *, held_out: bool, seed: int) -> Iterator[dict[str, Any]]:
    """So many different tasks; held out: from the numbers that the tiny model never saw."""
    rng, seen = random.Random(seed), set[str]()
    while len(seen) < number:
        problem = problems.draw(rng, "arithmetic", held_out=held_out, levels=(3,))
        a, b = problem.numbers
        is_sum = problem.value == str(a + b)
        expression = f"{a}{'+' if is_sum else '-'}{b}"
        if expression in seen:
            continue
        seen.add(expression)
        yield {
            "responses_create_params": {
                "input": [{"role": "user", "content": f"What is {expression}?"}]
            },
            "expression": expression,
            "expected_answer": problem.value,
            "solution": f"{problem.working}. Answer: {problem.value}",
        }


if __name__ == "__main__":
    main()
