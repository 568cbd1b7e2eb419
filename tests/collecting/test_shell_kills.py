"""Rollouts in sessions of the shell, killed with everything that belongs to them, and continued."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import NO_NAMESPACES, eventually, may_isolate, read_jsonl
from test_harness_runs import check_nothing_is_left, leaving_nothing
from workplace import ROOT

pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)

NUM_TASKS = 6


def make_command(output: Path, num_repeats: int) -> list[str]:
    return [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        "+config_paths=[configs/shell.yaml]",
        "+dataset=example",
        f"+output_jsonl_fpath={output}",
        f"+num_repeats={num_repeats}",
        "+num_samples_in_parallel=16",
        "+max_attempts=1",
    ]


def kill_once_stored(command: list[str], output: Path, num_lines: int) -> bool:
    """Run the command until there are so many lines, then kill all of it; False if it ended."""

    def count() -> int:
        return output.read_bytes().count(b"\n") if output.exists() else 0

    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as process:
        while (number := count()) < num_lines and process.poll() is None:
            eventually(lambda: count() > number or process.poll() is not None)
        is_running = process.poll() is None
        if is_running:
            os.killpg(process.pid, signal.SIGKILL)
    check_nothing_is_left(process.pid)
    return is_running


@pytest.mark.parametrize(
    ("num_repeats", "num_kills"), [(4, 1), pytest.param(334, 20, marks=pytest.mark.slow)]
)
def test_each_rollout_is_there_once_after_kills(
    num_repeats: int, num_kills: int, tmp_path: Path
) -> None:
    output, draw = tmp_path / "rollouts.jsonl", random.Random(3)
    command, number = make_command(output, num_repeats), NUM_TASKS * num_repeats
    with leaving_nothing(tmp_path):
        stops = sorted(draw.sample(range(number - 16), num_kills))
        assert all(kill_once_stored(command, output, stop) for stop in stops)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = read_jsonl(output)
    keys = Counter((line["_ng_task_index"], line["_ng_rollout_index"]) for line in lines)
    assert len(keys) == number and {*keys.values()} == {1}
    assert {line["reward"] for line in lines} == {1.0}
