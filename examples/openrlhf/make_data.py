"""Write OpenRLHF's data sets: sums, and tasks with a tool.

python examples/openrlhf/make_data.py results/openrlhf
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
        json.dumps({"input": task["responses_create_params"]["input"], "label": json.dumps(task)})
        for name in ("arithmetic", "tool")
        for task in map(json.loads, (DATA / f"{name}.jsonl").read_text().splitlines())
    ]
    (args.folder / "test.jsonl").write_text("\n".join(lines[:NUM_TEST]))
    (args.folder / "train.jsonl").write_text("\n".join(lines[NUM_TEST:]))


if __name__ == "__main__":
    main()
