"""Generate rows of this environment with reasoning-gym:

python resources_servers/reasoning_gym/generate.py basic_arithmetic sudoku --size 100 > rows.jsonl
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import orjson

warnings.filterwarnings("ignore", category=SyntaxWarning)

import reasoning_gym  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402

ASK = (
    "Solve the problem. Think first; then give nothing but the final answer between <answer> and"
    " </answer>."
)


def generate_rows(family: str, size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Generate `size` tasks of a family, reproducibly for a seed."""
    for entry in reasoning_gym.create_dataset(family, size=size, seed=seed):
        asked = [{"role": "system", "content": ASK}, {"role": "user", "content": entry["question"]}]
        yield {"responses_create_params": {"input": asked}, **entry}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Generate rows of reasoning-gym's families as JSON lines."
    )
    parser.add_argument("families", nargs="*", help="names of families; default: all")
    parser.add_argument("--size", type=int, default=10, help="tasks per family")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    families = given.families or sorted(DATASETS.keys() - {"composite"})
    if unknown := sorted(set(families) - DATASETS.keys()):
        parser.error(f"reasoning-gym has no {', '.join(unknown)}; known: {', '.join(DATASETS)}")
    for family in families:
        for row in generate_rows(family, given.size, given.seed):
            line = orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
            sys.stdout.buffer.write(line)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # some families depend on the order of sets
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    main()
