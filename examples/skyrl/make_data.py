"""Write SkyRL's data sets: sums, and tasks with a tool.

python examples/skyrl/make_data.py results/skyrl
"""

import argparse
import json
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "responses_api_models/local_model/data"

NUM_TEST = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(make_row(json.loads(line)))
        for name in ("arithmetic", "tool")
        for line in (DATA / f"{name}.jsonl").read_text().splitlines()
    ]
    (args.folder / "test.jsonl").write_text("\n".join(lines[:NUM_TEST]))
    (args.folder / "train.jsonl").write_text("\n".join(lines[NUM_TEST:]))


def make_row(task: dict) -> dict:
    """`prompt` is what SkyRL measures and shows; `row` is the task."""
    return {
        "prompt": [
            {"role": each["role"], "content": each["content"]}
            for each in task["responses_create_params"]["input"]
        ],
        "env_class": "rollout_kit",
        "row": json.dumps(task),
    }


if __name__ == "__main__":
    main()
