"""Worker processes beside a single process: the same rollouts by turns, and the ratios.

    python -m benchmarks.workers                                      short rollouts, two workers
    python -m benchmarks.workers --latency 1 --in-flight 1024 --rollouts 60000

A pair is one run of each, in alternating order. Rates are those between the first and the last line
of progress, without the start of the workers; CPU is that of all processes, with their start. That
of the driver is what a longer run takes beyond a short one of 4,000 rollouts.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from .measure import Unmeasured, environment

NUM_TASKS, FEW = 2_000, 4_000
"""Tasks, and rollouts of the short run that leaves out the driver's start."""

CONFIG = """\
policy_model:
  responses_api_models:
    simulated_model:
      {{answer: script, script_jsonl_fpath: {tasks}, accuracy: 0.5, latency_s: {latency}}}
config_paths: [resources_servers/mcqa/configs/mcqa.yaml]
"""


class Ran(NamedTuple):
    """Rollouts a second, and seconds of CPU: of all processes, and of the first one."""

    rate: float
    cpu_s: float
    driver_cpu_s: float


def write_tasks(path: Path) -> None:
    with path.open("w") as stream:
        for number in range(NUM_TASKS):
            asked = [{"role": "user", "content": f"Question {number}: which? A) a B) b"}]
            row = {
                "responses_create_params": {"input": asked},
                "options": [{"A": "a"}, {"B": "b"}],
                "expected_answer": "A",
                "gold_output": "\\boxed{A}",
                "wrong_output": "\\boxed{B}",
            }
            stream.write(json.dumps(row) + "\n")


def run(folder: Path, rollouts: int, in_flight: int, *words: str) -> Ran:
    """One collection into a new file."""
    output = folder / "rollouts.jsonl"
    command = [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[{folder}/run.yaml]",
        f"+input_jsonl_fpath={folder}/tasks.jsonl",
        f"+output_jsonl_fpath={output}",
        f"+num_repeats={rollouts // NUM_TASKS}",
        f"+num_samples_in_parallel={in_flight}",
        *("+json=true", "+resume=fresh", *words),
    ]
    before = _children_cpu_s()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )
    driver_cpu_s = 0.0
    while process.poll() is None:
        driver_cpu_s = _cpu_s_of(process.pid) or driver_cpu_s
        time.sleep(0.05)
    if process.returncode:
        raise Unmeasured(f"the command ended with status {process.returncode}")
    metrics = json.loads((folder / "rollouts_aggregate_metrics.json").read_bytes())
    if metrics["counts"]["rollouts"] != rollouts:
        raise Unmeasured(f"{metrics['counts']['rollouts']:,} of {rollouts:,} rollouts")
    rate = metrics["throughput"]["rollouts_per_s"]
    return Ran(rate, _children_cpu_s() - before, driver_cpu_s)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_s_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=40_000)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds of each answer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    number = args.rollouts // NUM_TASKS * NUM_TASKS
    if number <= FEW:
        parser.error(f"--rollouts: more than {FEW:,}")
    spread = ("+executor=processes", f"+num_workers={args.workers}")
    ratios, more_ms, driver_us = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder / "tasks.jsonl")
        text = CONFIG.format(tasks=folder / "tasks.jsonl", latency=args.latency)
        (folder / "run.yaml").write_text(text)
        for pair in range(args.pairs):
            ran = {}
            for words in ((), spread) if pair % 2 else (spread, ()):
                ran[words] = run(folder, number, args.in_flight, *words)
            one, several = ran[()], ran[spread]
            short = run(folder, FEW, args.in_flight, *spread)
            ratios.append(several.rate / one.rate)
            more_ms.append(1e3 * (several.cpu_s - one.cpu_s) / number)
            beyond_s = several.driver_cpu_s - short.driver_cpu_s
            driver_us.append(1e6 * beyond_s / (number - FEW))
            print(
                f"one process {one.rate:,.0f} rollouts/s, {args.workers} workers"
                f" {several.rate:,.0f}: {ratios[-1]:.3f} ×; {more_ms[-1]:+.3f} ms CPU a rollout,"
                f" driver {driver_us[-1]:.0f} µs, and {short.driver_cpu_s:.1f} s for its start and"
                f" {FEW:,} rollouts",
                flush=True,
            )
    print(
        f"medians: {statistics.median(ratios):.3f} ×, {statistics.median(more_ms):+.3f} ms more CPU"
        f" a rollout, driver {statistics.median(driver_us):.0f} µs"
    )


if __name__ == "__main__":
    main()
