"""examples/grpo: few steps of the whole loop, in which every process is killed once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_kit import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.trainers
def test_the_loop_goes_on_after_each_of_its_processes_was_killed(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "examples/grpo/demo.py", "--kill", "--steps", "6"]
    done = subprocess.run(
        [*words, "--test", "8", "--folder", tmp_path], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("the trainer", "the buffer", "the servers", "everything", "the collector"):
        assert f"killing {name}" in done.stdout, done.stdout
    assert "6 steps, 192 groups, each of them once" in done.stdout, done.stdout
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    assert (tmp_path / "report.html").exists()
    rollouts = list(load(tmp_path / "rollouts.jsonl"))
    assert len({each.key for each in rollouts}) == len(rollouts) >= 6 * 32 * 8
    versions = {each.versions for each in rollouts}
    assert None not in versions  # every turn says the weights that sampled it
    assert {first for first, _ in versions} >= set(range(6))
    lines = (tmp_path / "rollouts.d/acks.jsonl").read_text().splitlines()
    acks = [json.loads(line) for line in lines]
    used = [ack["key"] for ack in acks if ack.get("reason") == "acked"]
    assert len(used) == len(set(used)) == 192
