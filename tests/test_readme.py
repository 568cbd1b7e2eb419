"""What the README shows a newcomer works as it is written there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import read_jsonl
from test_commands import ROOT

pytest.importorskip("ctranslate2")

README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def the(language: str, containing: str) -> str:
    [found] = [block for block in blocks(language) if containing in block]
    return found


def shell(script: str, folder: Path) -> str:
    if not (BIN / "ng_help").exists():
        pytest.skip("the commands are not installed beside this interpreter")
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_verifier_of_one_s_own_takes_the_lines_that_the_readme_shows(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers/exact"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(the("python", "class Exact"))
    (tmp_path / "exact.yaml").write_text(the("yaml", "exact:"))
    (tmp_path / "tasks.jsonl").write_text(the("json", "6 × 7"))
    said = shell(the("bash", "exact.yaml"), tmp_path)
    assert "Plan: 1 task × 1 repeat = 1 rollout" in said
    [line] = read_jsonl(tmp_path / "results/exact.jsonl")
    assert line["agent_ref"]["name"] == "exact_simple_agent" and "length" in line


def test_verdicts_can_be_left_for_later_as_the_readme_shows(tmp_path: Path) -> None:
    said = shell(the("bash", "ng_reverify"), tmp_path)
    unverified, verified = (
        read_jsonl(tmp_path / f"results/later/{name}.jsonl") for name in ("unverified", "verified")
    )
    assert f"First verdicts: {len(unverified)}" in said and len(verified) == len(unverified) > 0
    assert not any("reward" in line for line in unverified)
    assert all("reward" in line for line in verified)


def test_the_recipe_over_the_output_works(tmp_path: Path) -> None:
    rows = '{"usage": {"total_tokens": 3}}\n{"usage": {"total_tokens": 5}}\n'
    (tmp_path / "rollouts.jsonl").write_text(rows)
    assert shell(the("bash", "jq "), tmp_path).strip() == "Avg tokens/sample: 4"


def test_every_command_that_the_readme_names_exists() -> None:
    from rollout_kit.config.commands import COMMANDS

    named = set(re.findall(r"\bng_\w+", README))
    assert named <= set(COMMANDS), named - set(COMMANDS)


def test_every_file_that_the_readme_names_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"[\w/]+/[\w/]+\.(?:yaml|jsonl|py)\b", README):
        assert (ROOT / path).exists() or path.startswith(("results/", "resources_servers/exact")), (
            path
        )
