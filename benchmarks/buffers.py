"""Groups a second through each buffer: 8 rollouts of 4 KB each, put, taken in batches and acked.

python -m benchmarks.buffers             # memory, spool, http, redis beside a bare XADD
.ray/bin/python -m benchmarks.buffers ray
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rollout_kit.rl import Buffer, BufferedGroup, MemoryBuffer, open_buffer, serve_buffer

NUMBER = {"memory": 100_000, "spool": 4_000, "ray": 2_000}
"""Groups of a run; others take 4,000."""

WRITERS, BATCH = 64, 32

LINES = [{"reward": 0.5, "response": {"output": []}, "text": "x" * 4_000} for _ in range(8)]


@asynccontextmanager
async def buffer_of(kind: str, folder: Path) -> AsyncIterator[Buffer]:
    if kind == "http":
        async with serve_buffer(MemoryBuffer()) as url, await open_buffer(url) as buffer:
            yield buffer
        return
    urls = {
        "memory": "memory",
        "spool": f"memory:?spool={folder / 'spool'}",
        "redis": f"unix://{folder / 'redis.sock'}",
        "ray": "ray:///bench",
    }
    async with await open_buffer(urls[kind]) as buffer:
        yield buffer


async def measure(kind: str, folder: Path) -> tuple[float, float]:
    """Groups a second, and µs of CPU a group in this process."""
    number = NUMBER.get(kind, 4_000)
    async with buffer_of(kind, folder) as buffer:

        async def write(which: int) -> None:
            for each in range(which, number, WRITERS):
                group = BufferedGroup(f"{kind}:{each}", LINES, version_first=0)
                assert await buffer.put(group) == "ok"

        async def read() -> None:
            left = number
            while left:
                batch = await buffer.get(min(BATCH, left))
                assert batch is not None
                left -= len(await buffer.ack(batch.lease))

        return await measure_work(number, read(), *map(write, range(WRITERS)))


async def measure_xadd(folder: Path) -> tuple[float, float]:
    """The same bytes into a stream that nobody bounds, reads or acknowledges."""
    from redis.asyncio import Redis

    redis, number = Redis.from_url(f"unix://{folder / 'redis.sock'}"), 4_000

    async def write(which: int) -> None:
        for each in range(which, number, WRITERS):
            raw = BufferedGroup(f"{each}", LINES, version_first=0).encode()
            await redis.xadd("bare", {"key": f"{each}", "group": raw})

    found = await measure_work(number, *map(write, range(WRITERS)))
    await redis.delete("bare")
    await redis.aclose()
    return found


async def measure_work(number: int, *work: Any) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*work)
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    return number / wall, cpu / number * 1e6


def main() -> None:
    kinds = sys.argv[1:] or ["memory", "spool", "http", "redis", "xadd"]
    with tempfile.TemporaryDirectory() as name:
        folder, redis = Path(name), None
        if {"redis", "xadd"} & set(kinds):
            words = ["--port", "0", "--unixsocket", "redis.sock", "--save", ""]
            program = shutil.which("redis-server") or sys.exit("redis-server is not installed")
            redis = subprocess.Popen([program, *words], cwd=folder, stdout=subprocess.DEVNULL)
            while not (folder / "redis.sock").exists():
                time.sleep(0.01)
        if "ray" in kinds:
            os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", "ab" * 32
            import ray

            ray.init(num_cpus=1, include_dashboard=False, logging_level="error")
        try:
            print(f"{'buffer':8} {'groups/s':>10} {'MB/s':>7} {'CPU µs':>8}   best of 3")
            for kind in kinds:
                runs = [
                    asyncio.run(measure_xadd(folder) if kind == "xadd" else measure(kind, folder))
                    for _ in range(1 if kind == "ray" else 3)
                    if not _clean(folder, redis)
                ]
                rate, cpu = max(runs)[0], min(cpu for _, cpu in runs)
                print(f"{kind:8} {rate:>10,.0f} {rate * 0.0324:>7,.0f} {cpu:>8,.0f}", flush=True)
        finally:
            if redis:
                redis.kill()
                redis.wait()


def _clean(folder: Path, redis: Any) -> None:
    (folder / "spool").unlink(missing_ok=True)
    if redis:
        subprocess.run(["redis-cli", "-s", folder / "redis.sock", "flushall"], capture_output=True)


if __name__ == "__main__":
    main()
