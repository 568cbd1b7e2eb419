"""Write sums, and tasks with a tool, as rows of a trainer's data set.

python examples/trainer_data.py verl results/verl

The trainers are nemo_rl, openrlhf, skyrl and verl. The folder gets test.jsonl and train.jsonl.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "responses_api_models/local_model/data"

NUM_TEST = 64


def make_openrlhf_row(task: dict, number: int) -> dict:
    return {"input": task["responses_create_params"]["input"], "label": json.dumps(task)}


def make_skyrl_row(task: dict, number: int) -> dict:
    """`prompt` is what SkyRL measures and shows; `row` is the task."""
    return {
        "prompt": [
            {"role": each["role"], "content": each["content"]}
            for each in task["responses_create_params"]["input"]
        ],
        "env_class": "rollout_kit",
        "row": json.dumps(task),
    }


def make_verl_row(task: dict, number: int) -> dict:
    from rollout_kit.rl.adapters.verl import verl_row  # it needs verl

    return verl_row(task, number)


ROWS: dict[str, Callable[[dict, int], dict]] = {
    "nemo_rl": lambda task, number: task,
    "openrlhf": make_openrlhf_row,
    "skyrl": make_skyrl_row,
    "verl": make_verl_row,
}
"""Trainer → its row of a task, which has that number in its file."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trainer", choices=ROWS)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    make_row = ROWS[args.trainer]
    lines = [
        json.dumps(make_row(json.loads(line), number))
        for name in ("arithmetic", "tool")
        for number, line in enumerate((DATA / f"{name}.jsonl").read_text().splitlines())
    ]
    (args.folder / "test.jsonl").write_text("\n".join(lines[:NUM_TEST]) + "\n")
    (args.folder / "train.jsonl").write_text("\n".join(lines[NUM_TEST:]) + "\n")


if __name__ == "__main__":
    main()
