"""Groups a second through each buffer: 8 rollouts of 4 KB each, put, taken in batches and acked.
Those named `large` have 8 of 64 KB; `references` are groups in Redis that lie in a file.

python -m benchmarks.buffers             # memory, spool, http, redis beside a bare XADD, …
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
from rollout_kit.store.groups.members import HeldLine
from rollout_kit.store.lines import dump_line

NUMBER = {"memory": 100_000, "spool": 4_000, "ray": 2_000}
"""Groups of a run; others take 4,000."""

WRITERS, BATCH = 64, 32

LARGE = 64_000


def make_lines(size: int) -> list[dict[str, Any]]:
    return [{"reward": 0.5, "response": {"output": []}, "text": "x" * size} for _ in range(8)]


LINES = make_lines(4_000)


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
        "references": f"unix://{folder / 'redis.sock'}?reference_bytes=0",
        "ray": "ray:///bench",
    }
    async with await open_buffer(urls[kind.partition(" ")[0]]) as buffer:
        yield buffer


def write_lines(path: Path, lines: list[dict[str, Any]], number: int) -> list[list[HeldLine]]:
    """The lines of so many groups in a file, and where they are."""
    raws, offset, found = [dump_line(line) for line in lines], 0, []
    with path.open("wb") as stream:
        for _ in range(number):
            found.append([])
            for raw in raws:
                found[-1].append(HeldLine.of(path, offset, raw))
                offset += stream.write(raw)
    return found


async def measure(kind: str, folder: Path) -> tuple[float, float]:
    """Groups a second, and µs of CPU a group in this process."""
    is_large = kind.endswith("large")
    number = 500 if is_large else NUMBER.get(kind, 4_000)
    lines, places = make_lines(LARGE) if is_large else LINES, [[]] * number
    if kind.startswith("references"):
        places = write_lines(folder / "rollouts.jsonl", lines, number)
    async with buffer_of(kind, folder) as buffer:

        async def write(which: int) -> None:
            for each in range(which, number, WRITERS):
                of = {"version_first": 0, "places": places[each]}
                group = BufferedGroup(f"{kind}:{each}", lines, **of)
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
    kinds = sys.argv[1:] or ["memory", "spool", "http", "redis", "xadd", "references"]
    kinds += [] if sys.argv[1:] else ["redis large", "references large"]
    with tempfile.TemporaryDirectory() as name:
        folder, redis = Path(name), None
        if {"redis", "xadd", "references"} & {kind.partition(" ")[0] for kind in kinds}:
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
            print(f"{'buffer':16} {'groups/s':>10} {'MB/s':>7} {'CPU µs':>8}   best of 3")
            for kind in kinds:
                runs = [
                    asyncio.run(measure_xadd(folder) if kind == "xadd" else measure(kind, folder))
                    for _ in range(1 if kind == "ray" else 3)
                    if not _clean(folder, redis)
                ]
                rate, cpu = max(runs)[0], min(cpu for _, cpu in runs)
                mb = rate * (8 * LARGE if kind.endswith("large") else 32_400) / 1e6
                print(f"{kind:16} {rate:>10,.0f} {mb:>7,.0f} {cpu:>8,.0f}", flush=True)
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
