"""Runs that the installed inspect and Harbor make, read here: `make test-formats`."""

import json
import subprocess
from pathlib import Path

import pytest
from peer_pythons import folder_of

from rollout_kit.formats.importing import import_runs

MAKERS = Path(__file__).with_name("makers")

pytestmark = pytest.mark.formats


@pytest.mark.parametrize(("tool", "number"), [("inspect", 48), ("harbor", 24)])
def test_what_it_makes_is_read_with_rewards_and_calls(
    tool: str, number: int, tmp_path: Path
) -> None:
    python, maker = folder_of(tool) / "python", MAKERS / f"of_{tool}.py"
    assert python.exists(), "make test-formats installs it"
    made = subprocess.run(
        [python, maker, tmp_path / "theirs", "24"], cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr[-2000:]
    found = import_runs([tmp_path / "theirs"], tmp_path / "ours.jsonl")
    assert found.rollouts == number
    assert not [why for why in found.left_out if "malformed" in why]
    text = (tmp_path / "ours.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    kinds = {item["type"] for line in lines for item in line["response"]["output"]}
    assert {"message", "function_call", "function_call_output"} <= kinds
    assert {line["reward"] for line in lines} >= {0.0, 1.0}
