"""Run one process against the endpoint and measure it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import endpoint
from .endpoint import Setting, Stats
from .probe import PERIOD_S, Sample

ROOT = Path(__file__).resolve().parent.parent


class Unmeasured(Exception):
    """A run failed; the message is its output."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one run; times in seconds."""

    wall_s: float
    cpu_s: float
    """CPU of the process and of the children that it waited for, including the start."""
    flow_cpu_s: float
    """CPU of the process from its first request to the end of its loop; 0 without a probe."""
    peak_mb: float
    lag_p99_ms: float
    lag_max_ms: float
    to_first_request_s: float
    after_last_answer_s: float
    seen: Stats

    @property
    def span_s(self) -> float:
        """Time of requests: from the first request to the last answer."""
        return self.seen.last_s - self.seen.first_s


@contextmanager
def running_endpoint() -> Iterator[int]:
    """Start an endpoint in its own process and yield its port."""
    argv = [sys.executable, "-m", "benchmarks.endpoint"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def measure(argv: Sequence[str], folder: Path, port: int, setting: Setting) -> Measured:
    """Run `argv` to its end, with `{report}` replaced by the path for its probe; raise Unmeasured
    if it fails."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    argv = [word.replace("{report}", str(report)) for word in argv]
    endpoint.configure(port, setting)
    with (folder / "said.txt").open("w+b") as said:
        began = time.monotonic()
        process = subprocess.Popen(
            argv, cwd=folder, env=environment(), stdout=said, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        ended = time.monotonic()
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            said.seek(0)
            raise Unmeasured(f"{argv}: {said.read().decode()[-2000:]}")
    seen = endpoint.stats(port)
    found = json.loads(report.read_text()) if report.exists() else {"samples": [], "peak_mb": 0.0}
    samples = found["samples"]
    lags = lags_ms(samples, seen.first_s, seen.last_s)
    return Measured(
        wall_s=ended - began,
        cpu_s=usage.ru_utime + usage.ru_stime,
        flow_cpu_s=samples[-1][2] - cpu_at(samples, seen.first_s) if samples else 0.0,
        peak_mb=found["peak_mb"],
        lag_p99_ms=lags[int(len(lags) * 0.99)],
        lag_max_ms=lags[-1],
        to_first_request_s=seen.first_s - began,
        after_last_answer_s=ended - seen.last_s,
        seen=seen,
    )


def cpu_at(samples: Sequence[Sample], at: float) -> float:
    """CPU used at a time, interpolated between two samples."""
    before, after = samples[0], samples[-1]
    for sample in samples:
        if sample[0] > at:
            after = sample
            break
        before = sample
    if after[0] <= before[0]:
        return before[2]
    share = min(max((at - before[0]) / (after[0] - before[0]), 0.0), 1.0)
    return before[2] + share * (after[2] - before[2])


def lags_ms(samples: Sequence[Sample], begin: float, end: float) -> list[float]:
    """Delays of work that arrives every PERIOD_S between `begin` and `end`, sorted.

    A loop that blocks for a second yields one sample instead of a hundred; the others are added.
    """
    found = [0.0]
    for at, lag, _ in samples:
        if begin <= at - lag and at <= end:
            while lag > 0:
                found.append(lag * 1e3)
                lag -= PERIOD_S
    return sorted(found)


def cpu_s(pid: int) -> float:
    """CPU time of a process and the children it waited for; 0 if it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """A process's share of memory; 0 if it ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:") / 1024
