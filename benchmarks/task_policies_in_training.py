"""Whether a model learns faster if a policy chooses its tasks. Each policy trains on the lesson
`epochs` of examples/grpo with several seeds. The result is the steps until a held-out reward.

    .rl/bin/python -m benchmarks.task_policies_in_training FOLDER [--policies uniform later]

`make rl-seeds` makes that environment. A run whose folder is complete is only read. The figures are
steps and rewards, so other work on the machine does not change them.
"""

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from .measure import ROOT

Curve = dict[int, float]
"""Step → held-out reward."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--policies", nargs="+", default=["uniform", "later"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    curves: dict[str, list[Curve]] = {policy: [] for policy in given.policies}
    for seed in given.seeds:
        for policy in given.policies:
            curve = train(given.folder / f"{policy}_{seed}", policy, seed, given.steps)
            curves[policy].append(curve)
            show(f"{policy}, seed {seed}", curve)
    means = {
        policy: {step: fmean(each[step] for each in of) for step in of[0]}
        for policy, of in curves.items()
    }
    first = means[given.policies[0]]
    gain = first[given.steps] - first[0]
    wanted = [first[0] + share * gain for share in (0.5, 0.75, 1)]
    for policy, mean in means.items():
        show(f"{policy}, mean", mean)
        reached = (f"{reward:.3f}: {find_step(mean, reward)}" for reward in wanted)
        print(f"{policy}, steps until the mean is {', '.join(reached)}")


def train(folder: Path, policy: str, seed: int, steps: int) -> Curve:
    """The held-out reward before the first step, and after every tenth."""
    found = read_curve(folder)
    if not found.keys() >= {0, steps}:
        words = ["--lesson", "epochs", "--task-policy", policy, "--steps", str(steps)]
        words += ["--seed", str(seed), "--folder", str(folder)]
        command = [sys.executable, str(ROOT / "examples/grpo/demo.py"), *words]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found = read_curve(folder)
    return found


def read_curve(folder: Path) -> Curve:
    path = folder / "rollouts.d/evaluations.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    evaluations = [json.loads(line) for line in lines]
    return {each["version"]: each["reward"] for each in evaluations if each["set"] == "sums"}


def find_step(curve: Curve, reward: float) -> str:
    """The first step at which a straight line between two evaluations is at the reward."""
    points = sorted(curve.items())
    for (left, low), (right, high) in pairwise(points):
        if low < reward <= high:
            return f"{left + (right - left) * (reward - low) / (high - low):.0f}"
    return "never"


def show(name: str, curve: Curve) -> None:
    points = (f"{step} {reward:.3f}" for step, reward in curve.items())
    print(f"{name}: {', '.join(points)}", flush=True)


if __name__ == "__main__":
    main()
