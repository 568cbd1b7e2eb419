"""Measure leaks of a long run: memory, descriptors, sockets and sessions of every process.

    python -m benchmarks.soak [--tasks 10000] [--repeats 10] [--parallel 64]

Collects through an ng_run whose servers keep a session per rollout, against an instant endpoint.
The collector keeps a few counters per task by design (about 300 bytes), so tasks are repeated.
Exits 1 if the memory of a process grew by more than 5 % over the last half of the rollouts, or if a
session or request is left over.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rollout_kit.serving.process_tree import family

from .measure import ROOT, environment, memory_mb, running_endpoint
from .sides import Servers, collector_keys, ng_run
from .work import write_rows

GROWTH = 0.05
SLACK_MB = 2.0
"""Growth below this is caused by the allocator."""

SAMPLE_S = 5.0
STATUS = [sys.executable, "-c", "from rollout_kit.commands import main; main('ng_status')"]


@dataclass(frozen=True)
class Sample:
    done: int
    memory_mb: float
    descriptors: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, running_endpoint() as endpoint:
        folder = Path(name)
        rows = write_rows(folder / "tasks.jsonl", args.tasks)
        with ng_run(endpoint, "short", folder) as servers:
            sys.exit(soak(folder, servers, rows, args))


def soak(folder: Path, servers: Servers, rows: Path, args: argparse.Namespace) -> int:
    """Collect and observe every process; return the exit status."""
    out = folder / "out/rollouts.jsonl"
    argv = [
        sys.executable,
        "-c",
        "from rollout_kit.commands import main; main('ng_collect_rollouts')",
    ]
    argv += collector_keys(rows, args.parallel, str(out))
    argv += [f"+head_server.port={servers.head_port}", f"+num_repeats={args.repeats}"]
    collector = subprocess.Popen(argv, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    planned = args.tasks * args.repeats
    began = time.monotonic()
    samples: dict[int, list[Sample]] = defaultdict(list)
    size_of_one = 0.0
    while collector.poll() is None:
        time.sleep(SAMPLE_S)
        size = out.stat().st_size if out.exists() else 0
        if not size_of_one and size:
            size_of_one = size / out.read_bytes().count(b"\n")
        done = int(size / size_of_one) if size_of_one else 0
        for pid in [*family(servers.pid), collector.pid]:
            if sample := looked_at(pid, done):
                samples[pid].append(sample)
    elapsed_s = time.monotonic() - began
    print(f"{planned} rollouts in {elapsed_s:.0f} s, exit status {collector.returncode}")
    names = {collector.pid: "collector", servers.pid: "ng_run"}
    status = subprocess.run(
        [*STATUS, f"+head_server.port={servers.head_port}", "+json=true"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    listed = json.loads(status.stdout)["servers"]
    names |= {each["pid"]: each["name"] for each in listed}
    left = {each["name"]: each["load"] for each in listed if any(each["load"].values())}
    print(f"left in flight or open: {left or 'nothing'}")
    grown = report(samples, names, planned)
    return 1 if grown or left or collector.returncode else 0


def looked_at(pid: int, done: int) -> Sample | None:
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None  # it has just ended
    return Sample(done, held, descriptors) if (held := memory_mb(pid)) else None


def report(samples: dict[int, list[Sample]], names: dict[int, str], planned: int) -> bool:
    """Print a line per process; return whether one has grown."""
    print(f"{'process':<24}{'MB at half':>11}{'MB at end':>11}{'growth':>8}{'files':>12}")
    has_grown = False
    for pid, seen in samples.items():
        later = [sample for sample in seen if sample.done >= planned / 2]
        if len(later) < 2:
            continue
        half, end = later[0], later[-1]
        growth = end.memory_mb / half.memory_mb - 1
        mark = ""
        if growth > GROWTH and end.memory_mb - half.memory_mb > SLACK_MB:
            has_grown, mark = True, "  <- grows"
        files = f"{half.descriptors} → {end.descriptors}"
        print(
            f"{names.get(pid, f'pid {pid}'):<24}{half.memory_mb:>11.1f}{end.memory_mb:>11.1f}"
            f"{growth:>8.1%}{files:>12}{mark}"
        )
    return has_grown


if __name__ == "__main__":
    main()
