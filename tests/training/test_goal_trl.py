"""The scripts of docs/goals train with TRL on what the commands of the page write. `make trainers`
installs TRL, and `make test-trainers` runs this."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import HANG_S, blocks
from workplace import ROOT

PAGE = ROOT / "docs/goals/make-sft-and-preference-data.md"

CHECKPOINT = ROOT / "responses_api_models/local_model/checkpoint"

pytestmark = pytest.mark.trainers


def test_the_page_s_scripts_train_on_its_files(tmp_path: Path) -> None:
    for block in blocks(PAGE.read_text()):
        if block.file:
            path = tmp_path / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "bash" and not block.reason:
            run(
                ["bash", "-ec", f'PATH="{Path(sys.executable).parent}:$PATH"; {block.text}'],
                tmp_path,
            )
    for script, rows, folder in (
        ("train_sft.py", "results/sft.jsonl", "results/sft"),
        ("train_dpo.py", "results/pairs.jsonl", "results/dpo"),
    ):
        run([sys.executable, script, str(CHECKPOINT), rows], tmp_path)
        [state] = (tmp_path / folder).glob("checkpoint-*/trainer_state.json")
        found = json.loads(state.read_text())
        losses = [each["loss"] for each in found["log_history"] if "loss" in each]
        assert found["global_step"] == 10 and losses and all(loss > 0 for loss in losses)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=5 * HANG_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
