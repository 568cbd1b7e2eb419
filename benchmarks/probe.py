"""Run a command of rollout_kit unchanged, and observe it from inside.

    python -m benchmarks.probe report.json collect_rollouts +config_paths=[…] …

The report has the event loop's lag and the CPU over time, and the peak memory of this process. (The
memory that `wait4` reports for a child can be its parent's, whose pages it shared at first.)
"""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

Sample = tuple[float, float, float]
"""Time, delay of the event loop, CPU used so far; in seconds."""

PERIOD_S = 0.01
"""A hundred samples per second cost about a thousandth of a core."""


async def run_probed(work: Coroutine[Any, Any, Any], report: Path) -> Any:
    """Run `work` with a probe on the same loop; write the report at the end."""
    samples: list[Sample] = [(time.monotonic(), 0.0, time.process_time())]
    task = asyncio.create_task(_probe(samples))
    try:
        return await work
    finally:
        task.cancel()
        samples.append((time.monotonic(), 0.0, time.process_time()))
        found = {"samples": samples, "peak_mb": peak_mb("self")}
        report.write_text(json.dumps(found))  # noqa: ASYNC240 - the work is done


async def _probe(samples: list[Sample]) -> None:
    while True:
        due = time.monotonic() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        now = time.monotonic()
        samples.append((now, max(now - due, 0.0), time.process_time()))


def peak_mb(pid: int | str) -> float:
    """Peak memory of a process so far; 0 if it ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) / 1024 if found else 0.0


def main() -> None:
    report, command, *argv = sys.argv[1:]
    from rollout_kit import commands
    from rollout_kit.serving.transport import loop

    run = loop.run
    loop.run = lambda work: run(run_probed(work, Path(report)))  # type: ignore[assignment]
    commands.main(f"ng_{command}", argv)


if __name__ == "__main__":
    main()
