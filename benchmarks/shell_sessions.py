"""What sessions of the shell cost: `python -m benchmarks.shell_sessions [--live 500] [--many N]`.

Time to make one, to run `true` and to reset; then memory and CPU of idle sessions; then, with
`--many`, whether the figures stay after so many sessions. Next to it `bwrap`, where it is there,
and with `--image` a new container.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rollout_kit.serving.sandbox.container import Container
from rollout_kit.serving.sandbox.session.client import Sessions

BWRAP = "bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib"
BWRAP += " --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp --unshare-all"


async def measure(act: Callable[[], Awaitable[object]], number: int) -> str:
    found = []
    for _ in range(number):
        await asyncio.sleep(0.02)  # calls come now and then
        began = time.perf_counter()
        await act()
        found.append(1000 * (time.perf_counter() - began))
    cuts = statistics.quantiles(found, n=100)
    return f"median {statistics.median(found):.1f} ms, p99 {cuts[98]:.1f} ms"


def free_kb() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(each for each in lines if each.startswith("MemAvailable")).split()[1])


def cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def list_children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def find_warden() -> int:
    """The process that makes the sessions of this one."""
    children = list_children(os.getpid())
    return next(
        each for each in children if Path(f"/proc/{each}/comm").read_text() == "rk-warden\n"
    )


async def time_calls(sessions: Sessions, number: int) -> None:
    opened = []

    async def create() -> None:
        opened.append(await sessions.create())

    async def create_and_close() -> None:
        await create()
        opened.pop().close()

    print("create:", await measure(create_and_close, number))
    await create()
    print("exec true:", await measure(lambda: opened[0].exec("true"), number))
    print("reset:", await measure(opened[0].reset, number))
    opened.pop().close()


async def hold_idle(sessions: Sessions, number: int) -> None:
    before = free_kb()
    opened = [await sessions.create() for _ in range(number)]
    await asyncio.sleep(3)
    print(f"{number} sessions: {(before - free_kb()) / 1e6:.2f} GB of the machine's memory")
    warden = find_warden()
    pids = [os.getpid(), warden, *list_children(warden)]
    began, used = time.monotonic(), cpu_s(pids)
    await asyncio.sleep(20)
    share = (cpu_s(pids) - used) / (time.monotonic() - began)
    print(f"{number} idle sessions: {100 * share:.2f} % of a core")
    for each in opened:
        each.close()


async def make_many(sessions: Sessions, number: int) -> None:
    def figures() -> str:
        descriptors = len(os.listdir("/proc/self/fd"))
        warden = find_warden()
        theirs = len(os.listdir(f"/proc/{warden}/fd"))
        resident = Path(f"/proc/{warden}/statm").read_text().split()[1]
        mounts = len(Path(f"/proc/{warden}/mounts").read_text().splitlines())
        return f"descriptors {descriptors} + {theirs}, warden {resident} pages, mounts {mounts}"

    print("before:", figures())
    for _ in range(number // 10):
        opened = await asyncio.gather(*[sessions.create() for _ in range(10)])
        await asyncio.gather(*[each.exec("echo x > /tmp/x") for each in opened])
        for each in opened:
            each.close()
    await asyncio.sleep(2)
    print(f"after {number}:", figures())


async def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--number", type=int, default=200)
    asked.add_argument("--live", type=int, default=500)
    asked.add_argument("--many", type=int, default=0)
    asked.add_argument("--image", help="of a container for `true`, in an engine that is here")
    given = asked.parse_args()
    async with Sessions(num_ready=2) as sessions:
        await time_calls(sessions, given.number)
    async with Sessions() as sessions:
        print("without sessions made ahead:")
        await time_calls(sessions, given.number)
        if given.many:
            await make_many(sessions, given.many)
            await time_calls(sessions, given.number)
        if given.live:
            await hold_idle(sessions, given.live)

    others = {"bash": []}
    if shutil.which("bwrap"):
        others["bwrap"] = BWRAP.split()
    if given.image:
        engine = Container(given.image).find_engine()
        others[engine] = [engine, "run", "--rm", "--network=none", given.image]
    for name, starting in others.items():
        words = [*starting, "/bin/bash", "-c", "true"]

        async def run(words: list[str] = words) -> None:
            await asyncio.to_thread(subprocess.run, words, check=True)

        print(f"{name}, a new one for `true`:", await measure(run, given.number))


if __name__ == "__main__":
    asyncio.run(main())
