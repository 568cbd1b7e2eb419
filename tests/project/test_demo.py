"""What `make demo` runs, at temperature 0: three agents, mostly right and not always."""

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest
from claims import assert_prints
from support import read_jsonl, skip_unless_installed
from workplace import ROOT

skip_unless_installed("ctranslate2", "math_verify")

LEAST = {
    "math_with_verify_simple_agent": 0.4,
    "mcqa_simple_agent": 0.6,
    "calculator_simple_agent": 0.8,
}
"""Mean rewards that a model of these skills has at least; docs/tiny_model.md has the figures."""


def demo_argv() -> list[str]:
    """The arguments of the Makefile's command, as make gives them to the shell."""
    recipe = re.search(r"ng_collect_rollouts (.*?[^\\])\n", (ROOT / "Makefile").read_text(), re.S)
    assert recipe
    return shlex.split(recipe[1].replace("\\\n", " "))


def test_the_demo_is_held_out_mostly_right_and_calls_its_tool(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    argv = [arg for arg in demo_argv() if "output_jsonl_fpath" not in arg]
    argv += [f"+output_jsonl_fpath={output}", "+responses_create_params.temperature=0"]
    code = "from rollout_kit.commands import main; main('ng_collect_rollouts')"
    subprocess.run([sys.executable, "-c", code, *argv, "+num_repeats=1"], cwd=ROOT, check=True)
    rollouts = read_jsonl(output)
    assert len(rollouts) == 96
    rewards = defaultdict(list)
    for rollout in rollouts:
        rewards[rollout["agent_ref"]["name"]].append(rollout["reward"])
    assert set(rewards) == set(LEAST)
    for agent, floor in LEAST.items():
        assert floor <= mean(rewards[agent]), agent
    assert mean(rollout["reward"] for rollout in rollouts) < 1
    called = [_is_called_rightly(rollout) for rollout in rollouts if "call" in rollout]
    assert mean(called) >= 0.8


@pytest.mark.documents
def test_make_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    words = ["make", "-f", ROOT / "Makefile", "-o", ".venv/.ready-demo", f"BIN={folder}", "demo"]
    done = subprocess.run(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    assert_prints("README.md", "Plan: 96 tasks", done.stdout.replace(str(folder), ".venv/bin"))


def _is_called_rightly(rollout: dict) -> bool:
    calls = [item for item in rollout["response"]["output"] if item["type"] == "function_call"]
    made = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return made == [("add", rollout["call"])]
