"""examples/verl, as far as a CPU goes: settings and data are read by verl, and rollouts get its
advantages and its loss. `make test-trainers` runs this."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.trainers
def test_verl_reads_the_example_and_computes_a_loss(tmp_path: Path) -> None:
    pytest.importorskip("verl")

    def run(script: str, *words: str) -> str:
        command = [sys.executable, str(ROOT / "examples/verl" / script), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("../trainer_data.py", "verl", str(tmp_path))
    said = run("check.py", "--folder", str(tmp_path))
    assert "are known; data: 960 tasks" in said
    [loss] = re.findall(r"32 rollouts; loss ([+-]\d\.\d+)", said)
    assert abs(float(loss)) < 0.1  # the advantages of a group add up to 0
