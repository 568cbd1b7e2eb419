"""`configs/rehearsal.yaml`: every rollout arrives, whatever its endpoint does."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

from rollout_kit.serving.sockets import bound_socket

ROOT = Path(__file__).resolve().parents[3]


def test_the_rehearsal_loses_no_rollout_and_rewards_about_the_accuracy(tmp_path):
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    output = tmp_path / "rollouts.jsonl"
    code = "from rollout_kit.commands import main; main('ng_collect_rollouts')"
    argv = ["+config_paths=[configs/rehearsal.yaml]", "+dataset=example", "+num_repeats=20"]
    argv += [f"+output_jsonl_fpath={output}", f"+rehearsal_port={port}"]
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    rollouts = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rollouts) == 120
    assert 0.5 < mean(rollout["reward"] for rollout in rollouts) < 0.9
