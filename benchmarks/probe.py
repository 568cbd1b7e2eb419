"""Runs a command of rollout_kit as it is, and looks from inside at how it does.

    python -m benchmarks.probe report.json collect_rollouts +config_paths=[…] …

The report holds the event loop's lag and the CPU used over time, and the peak memory of this very
process. (What `wait4` says of a child's memory can be its parent's, whose pages it had at first.)
"""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

Sample = tuple[float, float, float]
"""When, how much later than asked for the loop came back, CPU used so far; all in seconds."""

PERIOD_S = 0.01
"""A hundred wake-ups a second cost about a thousandth of a core."""


async def probed(work: Coroutine[Any, Any, Any], report: Path) -> Any:
    """`work`, with a probe beside it on the same loop; the report is written when it ends."""
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
    """The most memory that a process has held so far; 0 where it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) / 1024 if found else 0.0


def main() -> None:
    report, command, *argv = sys.argv[1:]
    from rollout_kit.transport import loop

    run = loop.run
    loop.run = lambda work: run(probed(work, Path(report)))  # type: ignore[assignment]
    import_module(f"rollout_kit.cli.{command}").main(argv)


if __name__ == "__main__":
    main()
