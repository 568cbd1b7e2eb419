"""examples/trl: each script with few steps, by the real package. `make test-trainers` runs this."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.trainers


def run(script: str, *words: str) -> str:
    pytest.importorskip("trl")
    done = subprocess.run(
        [sys.executable, ROOT / "examples/trl" / script, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_grpo_trains_on_rollouts_with_tools(tmp_path: Path) -> None:
    said = run("grpo.py", "--folder", str(tmp_path), "--steps", "3", "--prompts", "4")
    assert len(re.findall(r"^step +\d+  reward \d\.\d+  loss [+-]\d", said, re.MULTILINE)) == 3
    assert "mean reward of the first 1 steps" in said
    assert (tmp_path / "weights/step_3/STABLE").exists()


def test_ten_steps_of_dpo_lower_the_loss(tmp_path: Path) -> None:
    said = run("dpo.py", "--folder", str(tmp_path), "--tasks", "60", "--steps", "10")
    [last] = re.findall(r"dpo: .* 10 steps; the last: loss (\d\.\d+)", said)
    assert float(last) < math.log(2) - 0.05
    assert (tmp_path / "adapter/adapter_model.safetensors").exists()
