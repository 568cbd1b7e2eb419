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

AS_LINE = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def generate_rows(
    family: str, size: int, seed: int, *, asks: bool = True
) -> Iterator[dict[str, Any]]:
    """Generate `size` tasks of a family, reproducibly for a seed. Without `asks`, the question is
    asked as it is."""
    for entry in reasoning_gym.create_dataset(family, size=size, seed=seed):
        system = [{"role": "system", "content": ASK}] if asks else []
        asked = [*system, {"role": "user", "content": entry["question"]}]
        yield {"responses_create_params": {"input": asked}, **entry}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Generate rows of reasoning-gym's families as JSON lines."
    )
    parser.add_argument("families", nargs="*", help="names of families; default: all")
    parser.add_argument("--size", type=int, default=10, help="tasks per family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bare", action="store_true", help="the question without instructions")
    given = parser.parse_args()
    families = given.families or sorted(DATASETS.keys() - {"composite"})
    if unknown := sorted(set(families) - DATASETS.keys()):
        parser.error(f"reasoning-gym has no {', '.join(unknown)}; known: {', '.join(DATASETS)}")
    output, sys.stdout = sys.stdout.buffer, sys.stderr  # some families print
    for family in families:
        for row in generate_rows(family, given.size, given.seed, asks=not given.bare):
            output.write(orjson.dumps(row, option=AS_LINE))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # some families depend on the order of sets
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    main()
