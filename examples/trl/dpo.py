"""Preference pairs from rollouts of the tiny model, and DPO on them with TRL.

python examples/trl/dpo.py [--folder results/trl_dpo] [--tasks 200] [--steps 20]
"""

import argparse
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dpo"))

import tasks

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "responses_api_models/local_model/checkpoint"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("results/trl_dpo"))
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = islice(tasks.draw(args.tasks, held_out=False, seed=0), args.tasks)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollouts, pairs = folder / "rollouts.jsonl", folder / "pairs.jsonl"
    run(
        "ng_collect_rollouts",
        "+config_paths=[configs/demo.yaml]",
        "+agent_name=math_with_verify_simple_agent",
        f"+input_jsonl_fpath={folder / 'tasks.jsonl'}",
        f"+output_jsonl_fpath={rollouts}",
        "+num_repeats=8",
        "+responses_create_params.temperature=1",
    )
    words = ["+format=trl_dpo", f"+output_fpath={pairs}", "+where=num_tool_calls == 0"]
    run("ng_pairs", f"{rollouts}", *words)
    train = [str(ROOT / "examples/dpo/train.py"), "dpo", str(BASE), str(pairs)]
    settings = ["--set", f"max_steps={args.steps}"]
    run("python", *train, str(folder / "adapter"), *settings)


def run(name: str, *words: str) -> None:
    """Run a program of this environment."""
    program = Path(sys.executable).with_name(name)
    subprocess.run([str(program), *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
