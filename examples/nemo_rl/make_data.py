"""Write the data sets of NeMo-RL: sums, and tasks with a tool. Each row names its agent.

python examples/nemo_rl/make_data.py results/nemo_rl
"""

import argparse
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "responses_api_models/local_model/data"

NUM_TEST = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = [
        line
        for name in ("arithmetic", "tool")
        for line in (DATA / f"{name}.jsonl").read_text().splitlines()
    ]
    (args.folder / "test.jsonl").write_text("\n".join(lines[:NUM_TEST]) + "\n")
    (args.folder / "train.jsonl").write_text("\n".join(lines[NUM_TEST:]) + "\n")


if __name__ == "__main__":
    main()
