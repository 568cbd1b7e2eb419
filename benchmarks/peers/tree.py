"""Measure a command and its descendants: wall time, CPU and peak memory."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollout_kit.serving.process_tree import family

from ..measure import Unmeasured, cpu_s, memory_mb

LOOK_S = 0.25
"""Interval between samples of memory; shorter peaks are missed for every tool."""


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    cpu_s: float
    peak_mb: float


def took(argv: Sequence[str], folder: Path, env: Mapping[str, str], *, at_most_s: float) -> Took:
    """Run to the end; raise Unmeasured if it fails or takes too long."""
    with (folder / "said.txt").open("w+b") as said:
        began = time.monotonic()
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        status = None
        peak_mb, used_s, looked = 0.0, {}, 0.0
        try:
            while time.monotonic() - began < at_most_s:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() - looked >= LOOK_S:
                    looked = time.monotonic()
                    pids = family(process.pid)
                    used_s.update({each: cpu_s(each) for each in pids})
                    peak_mb = max(peak_mb, sum(map(memory_mb, pids)))
                time.sleep(0.01)
            else:
                raise Unmeasured(f"not done after {at_most_s:.0f} s")
            wall_s = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:
                process.wait()
        if status:
            said.seek(0)
            raise Unmeasured(f"{argv[0]}: {said.read()[-1500:].decode(errors='replace')}")
    waited_s = usage.ru_utime + usage.ru_stime
    # children that were not waited for are not in `usage`: then what was seen last counts
    return Took(wall_s, max(waited_s, sum(used_s.values())), peak_mb)
