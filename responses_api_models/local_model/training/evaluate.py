"""How well the tiny model does on its held-out task files, measured by collecting rollouts.

    python responses_api_models/local_model/training/evaluate.py

Needs `pip install -e '.[demo]'`, the toolkit with its extra `demo`. Rollouts go to
results/tiny_model/, where a second run goes on; the tables are printed.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from problems import SKILLS
from tasks import AGENTS, DATA, ROOT

REPEATS = {0.0: 1, 0.7: 2, 1.0: 2}
"""Repeats at each temperature; at 0 every repeat is the same."""

Rollout = dict[str, Any]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--output", type=Path, default=ROOT / "results/tiny_model")
    options.add_argument("--model-path", help="Another checkpoint than the shipped one.")
    given = options.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    tasks = given.output / "tasks.jsonl"
    with tasks.open("wb") as file:
        for skill in SKILLS:
            with (DATA / f"{skill}.jsonl").open("rb") as rows:
                shutil.copyfileobj(rows, file)
    found = {
        temperature: collect(tasks, given.output, temperature, given.model_path)
        for temperature in REPEATS
    }
    for line in report(found):
        print(line)


def collect(tasks: Path, folder: Path, temperature: float, model_path: str | None) -> list[Rollout]:
    output = folder / f"temperature_{temperature:g}.jsonl"
    command = [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        "+config_paths=[configs/demo.yaml]",
        f"+input_jsonl_fpath={tasks}",
        f"+output_jsonl_fpath={output}",
        f"+num_repeats={REPEATS[temperature]}",
        f"+responses_create_params.temperature={temperature:g}",
    ]
    if model_path:
        command.append(f"+policy_model.responses_api_models.local_model.model_path={model_path}")
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in output.read_text().splitlines()]


def report(found: dict[float, list[Rollout]]) -> Iterable[str]:
    yield "| skill | " + " | ".join(f"temperature {each:g}" for each in found) + " |"
    yield "|---|" + "---|" * len(found)
    for skill in SKILLS:
        files = [
            [each for each in many if each["agent_ref"]["name"] == AGENTS[skill]]
            for many in found.values()
        ]
        yield _line(skill.replace("_", " "), files, reward)
        for level in sorted({each["level"] for each in files[0]}):
            at_level = [[each for each in many if each["level"] == level] for many in files]
            yield _line(f"… up to {level} digits", at_level, reward)
        if skill == "tool":
            yield _line("… right tool calls", files, is_called_rightly)
    yield _line("mean of the three", list(found.values()), reward)


def _line(name: str, files: list[list[Rollout]], score: Callable[[Rollout], float]) -> str:
    return f"| {name} | " + " | ".join(f"{mean(map(score, many)):.3f}" for many in files) + " |"


def reward(rollout: Rollout) -> float:
    return rollout["reward"]


def is_called_rightly(rollout: Rollout) -> bool:
    """One call in all, to `add`, with the two numbers of the question in their order."""
    calls = [each for each in rollout["response"]["output"] if each["type"] == "function_call"]
    made = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return made == [("add", rollout["call"])]


if __name__ == "__main__":
    main()
