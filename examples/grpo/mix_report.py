"""What became of a training: its evaluations on the way, and the shares of a mix."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rollouts.d/evaluations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def show_evaluations(folder: Path) -> None:
    """The evaluations of each set, and the last ones against the first."""
    lines = read_evaluations(folder)
    for name in dict.fromkeys(line["set"] for line in lines if is_sampled(line)):
        of = [line for line in lines if line["set"] == name]
        print(f"{name}, at each version: {', '.join(map(describe_evaluation, of))}")
    last = {each["set"]: each for each in lines}
    for line in last.values():
        said = f"{line['set']}: {line['reward']:.3f} at version {line['version']}"
        if "gain_low" in line:
            said += f", {line['gain']:+.3f}, 95 % interval [{line['gain_low']:+.3f}"
            said += f", {line['gain_high']:+.3f}]"
        print(said)
    if gains := [each for each in last.values() if "gain" in each and is_sampled(each)]:
        print(f"mean of the sets: {describe_mean_gain(gains)}")


def show_shares(folder: Path) -> None:
    """Of the groups that were trained on, those of each environment of a mix."""
    sources = count_sources(folder)
    for name, number in sources.items():
        print(f"{name}: {number:,} of {sources.total():,} groups, {number / sources.total():.1%}")
    print(f"largest distance of a share from its weight: {measure_distance(folder):.1%}")


def describe_evaluation(line: dict[str, Any]) -> str:
    said = f"{line['version']}: {line['reward']:.3f}"
    if "reward_low" in line:
        said += f" [{line['reward_low']:.3f}, {line['reward_high']:.3f}]"
    return said


def count_sources(folder: Path) -> Counter[str]:
    """The groups of each environment that were trained on."""
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return Counter(name for each in steps for name in each.get("sources", ()))


def measure_distance(folder: Path) -> float:
    """How far the share of an environment is from its weight, at most."""
    mix = json.loads((folder / "mix.yaml").read_text())["sources"]  # which is JSON
    used, total = count_sources(folder), sum(each["weight"] for each in mix.values())
    shares = {name: number / used.total() for name, number in used.items()}
    return max(abs(shares.get(name, 0.0) - each["weight"] / total) for name, each in mix.items())


def is_sampled(evaluation: dict[str, Any]) -> bool:
    return not evaluation["set"].endswith("_greedy")


def describe_mean_gain(evaluations: Sequence[dict[str, Any]]) -> str:
    """The mean gain of sets whose tasks are drawn apart, with its 95 % interval."""
    gain = sum(each["gain"] for each in evaluations) / len(evaluations)
    half = math.hypot(*(each["gain_high"] - each["gain"] for each in evaluations))
    half /= len(evaluations)
    return f"{gain:+.3f}, 95 % interval [{gain - half:+.3f}, {gain + half:+.3f}]"


def draw_evaluations(axes: Any, folder: Path) -> None:
    """The curve of each set that was evaluated, with its interval."""
    lines = read_evaluations(folder)
    for name in dict.fromkeys(line["set"] for line in lines if is_sampled(line)):
        of = [line for line in lines if line["set"] == name]
        versions, rewards = [x["version"] for x in of], [x["reward"] for x in of]
        spread = [[x["reward"] - x["reward_low"] for x in of]]
        spread.append([x["reward_high"] - x["reward"] for x in of])
        axes.errorbar(versions, rewards, spread, marker="o", capsize=3, label=f"test: {name}")
