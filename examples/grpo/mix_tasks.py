"""Write tasks of three environments with their mix, and others to evaluate with.

python examples/grpo/mix_tasks.py FOLDER [--train 4000] [--test 192] [--seed 0]
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
import tasks  # noqa: E402  and how they become rows

WEIGHTS = {"arithmetic": 2, "multiple_choice": 2, "tool": 1}
"""Shares of the groups."""

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
    folder, sources, sets = args.folder.resolve(), {}, {}
    for skill, weight in WEIGHTS.items():
        train, test = folder / f"train_{skill}.jsonl", folder / f"test_{skill}.jsonl"
        write(train, skill, args.train // 3, held_out=False, seed=f"train {args.seed}")
        write(test, skill, args.test // 3, held_out=True, seed="test of the mix example")
        agent = {"agent_name": tasks.AGENTS[skill]}
        sources[skill] = {"input_jsonl_fpath": str(train), **agent, "weight": weight}
        params = {"temperature": 1, "max_output_tokens": 96}
        sets[skill] = {"input_jsonl_fpath": str(test), **agent, "responses_create_params": params}
    mix = {"when_down": "catch_up", "sources": sources}
    (folder / "mix.yaml").write_text(json.dumps(mix, indent=1))  # JSON is YAML
    (folder / "eval.yaml").write_text(json.dumps({"sets": sets}, indent=1))


def write(path: Path, skill: str, number: int, *, held_out: bool, seed: str) -> None:
    rows = draw(skill, number, held_out, seed)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def draw(skill: Any, number: int, held_out: bool, seed: str) -> Iterator[dict[str, Any]]:
    """So many different tasks. Those that are held out have numbers that the model never saw."""
    rng, seen = random.Random(f"{skill} {seed}"), set[str]()
    while number:
        problem = problems.draw(rng, skill, held_out=held_out, levels=(LEVEL,))
        if problem.text not in seen:
            seen.add(problem.text)
            number -= 1
            yield tasks.row(problem)


if __name__ == "__main__":
    main()
