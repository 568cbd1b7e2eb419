"""Write verl's data sets: sums, and tasks with a tool.

python examples/verl/make_data.py results/verl
"""

import argparse
import json
from pathlib import Path

from rollout_kit.rl.adapters.verl import verl_row

DATA = Path(__file__).resolve().parents[2] / "responses_api_models/local_model/data"

NUM_TEST = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(verl_row(json.loads(line), number))
        for name in ("arithmetic", "tool")
        for number, line in enumerate((DATA / f"{name}.jsonl").read_text().splitlines())
    ]
    (args.folder / "test.jsonl").write_text("\n".join(lines[:NUM_TEST]))
    (args.folder / "train.jsonl").write_text("\n".join(lines[NUM_TEST:]))


if __name__ == "__main__":
    main()
