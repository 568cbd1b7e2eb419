"""Write two files of tasks for a shell: one to learn from, and one with files that are not in it.

python examples/grpo/shell_tasks.py FOLDER [--train 4000] [--test 64] [--seed 0]
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ASKED = (
    "count the lines",
    "sort the lines",
    "take the first line",
    "take the last line",
    "turn the lines around",
    "sort, without repeats",
    "write capital letters",
    "number the lines",
)
"""What is asked, in the order of the harness's commands."""

WORDS = ["ape", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=4000, help="number of tasks to learn from")
    parser.add_argument("--test", type=int, default=64, help="number of tasks to test with")
    parser.add_argument("--seed", type=int, default=0, help="draws other tasks to learn from")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    names = random.Random(0).sample(range(100, 1000), 900)
    write(args.folder / "train.jsonl", args.train, f"train {args.seed}", names[:700])
    write(args.folder / "test.jsonl", args.test, "test", names[700:])


def write(path: Path, number: int, seed: str, names: Sequence[int]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in draw(number, seed, names)))


def draw(number: int, seed: str, names: Sequence[int]) -> Iterator[dict[str, Any]]:
    """So many tasks, each kind as often as the others."""
    rng = random.Random(seed)
    for at in range(number):
        lines = rng.choices(WORDS, k=rng.randint(5, 8))
        while len(set(list_results(lines))) < len(ASKED):
            lines = rng.choices(WORDS, k=rng.randint(5, 8))
        kind = at % len(ASKED)
        text = f"{ASKED[kind]} {rng.choice(names)}: 1 2 3 4 5 6 7 8?"
        yield {
            "responses_create_params": {"input": [{"role": "user", "content": text}]},
            "files": {"/work/notes": "".join(f"{line}\n" for line in lines)},
            "verifier": {"kind": "files", "expected": {"/work/answer": list_results(lines)[kind]}},
        }


def list_results(lines: list[str]) -> list[str]:
    """What each of the commands prints."""
    found = [
        [str(len(lines))],
        sorted(lines),
        lines[:1],
        lines[-1:],
        lines[::-1],
        sorted(set(lines)),
        [line.upper() for line in lines],
        [f"{number:6}\t{line}" for number, line in enumerate(lines, 1)],
    ]
    return ["".join(f"{line}\n" for line in each) for each in found]


if __name__ == "__main__":
    main()
