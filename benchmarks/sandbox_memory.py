"""Measure how much memory programs hold in the sandbox that try to hold more than they may.

python -m benchmarks.sandbox_memory [number of runs of each] [name of a way …]

Held is what the machine has less while the program lives, its kernel memory included: MemAvailable
just before it is ended against MemAvailable before it began, and the largest difference until then.
"""

import asyncio
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))

from hoarders import HOARDERS

from rollout_kit.serving.sandbox.limits import SandboxLimits
from rollout_kit.serving.sandbox.sandbox import Sandbox

LIMITS = SandboxLimits(time_s=4, memory_mb=256)

SAMPLE_S = 0.01

SETTLED_S = 0.2
"""Samples after this much time count as held; earlier ones are a burst."""


def available_mb() -> float:
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) / 1024


async def measure(sandbox: Sandbox, code: str) -> tuple[float, float, str]:
    """The most that was held later than SETTLED_S, the most at all, and how the run ended."""
    await sandbox.run("pass")
    before = available_mb()
    task = asyncio.create_task(sandbox.run(code, limits=LIMITS))
    began, held, burst = time.monotonic(), 0.0, 0.0
    while not task.done():
        missing = before - available_mb()
        burst = max(burst, missing)
        if time.monotonic() - began > SETTLED_S:
            held = max(held, missing)
        await asyncio.sleep(SAMPLE_S)
    await asyncio.sleep(SETTLED_S)
    return held, burst, (await task).end


async def main(num_runs: int, names: list[str]) -> None:
    async with Sandbox(1) as sandbox:
        print(f"limit {LIMITS.memory_mb} MB; held after {SETTLED_S:g} s, burst, end")
        for name in names or HOARDERS:
            found = [await measure(sandbox, HOARDERS[name]) for _ in range(num_runs)]
            held, burst = (median(each[place] for each in found) for place in (0, 1))
            print(f"{name:28} {held:6.0f} MB {burst:6.0f} MB  {found[-1][2]}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 5, sys.argv[2:]))
