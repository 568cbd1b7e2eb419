"""A driver against simulated workers, under a virtual clock: CPU a rollout, memory, exchanges, and
the time to give the leases of lost workers to others.

    python -m benchmarks.cluster [--workers 1000] [--attempts 1000000] [--repeats 8] [--lost 100]

Schedule, leases, messages and metrics are the real ones; HTTP and the journal are not part of it. A
rollout takes a second of virtual time on average, and its line has 3 KB. The CPU of the simulated
workers is measured apart; what is left to the driver is its own work and that of the event loop.
"""

import argparse
import asyncio
import gc
import itertools
import random
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import orjson

from rollout_kit.analysis.metrics.summary import Metrics
from rollout_kit.api.testing import run_virtual
from rollout_kit.collecting.cluster.exchange import Exchange
from rollout_kit.collecting.cluster.leases import Lease, Leases
from rollout_kit.collecting.cluster.messages import (
    Event,
    decode_leases,
    read_message,
    write_event,
    write_message,
)
from rollout_kit.collecting.cluster.worker import GATHER_S
from rollout_kit.collecting.schedule import Attempts, Schedule
from rollout_kit.collecting.slot import Slot
from rollout_kit.errors import PeerLost
from rollout_kit.serving.transport.loop import GC_THRESHOLDS
from rollout_kit.store.lines import info_of
from rollout_kit.types import Attempt, Key, Outcome, Rollout, StoredTurn, Task

SHORTEST_S, LONGEST_S, WAIT_S, LEASE_S = 0.5, 1.5, 3.0, 15.0

SAY_EVERY_S = 15.0

IN_FLIGHT = 16
"""Rollouts in flight for each worker."""

FILLER = "The model thinks about the question for a while and then answers. " * 36


def attempts(number: int, repeats: int) -> Iterator[Attempt]:
    for at in range(number):
        task, index = divmod(at, repeats)
        task_id = f"{task * 0x9E3779B97F4A7C15 % (1 << 64):016x}"
        row = {"responses_create_params": {"input": f"question {task}"}}
        yield Attempt(Key(task_id, "agent", "", index), Task(task_id, task, task + 1, "agent", row))


class Template:
    """The event of a rollout as a worker writes it; making it must take next to nothing."""

    LEASE, TASK, INDEX, ID = 1010101010, 2020202020, 3030303030, "f" * 16

    def __init__(self) -> None:
        usage = {"input_tokens": 20, "output_tokens": 600, "total_tokens": 620}
        block = {"task_id": self.ID, "scope": "", "rollout_index": self.INDEX, "settings": "s"}
        block |= {"attempt": 1, "model": "m", "started_at": "2026-01-01T00:00:00.000Z"}
        block |= {"duration_s": 1.0, "queue_s": 0.000002, "model_s": 0.9, "verify_s": 0.01}
        block |= {"num_turns": 1, "num_tool_calls": 0, "verifier": "v", "finish_reason": "stop"}
        head = {"kind": "rollout", "schema": 1, "agent_ref": {"name": "agent"}, "reward": 1.0}
        head |= {"_ng_task_index": self.TASK, "_ng_rollout_index": self.INDEX}
        text = {"type": "output_text", "text": FILLER, "annotations": []}
        message = {"type": "message", "role": "assistant", "content": [text]}
        line = {**head, "usage": usage, "rollout": {**block, "scores": []}}
        line["response"] = {"output": [message]}
        about = {"spent": [1, 620, 0.0, 0, 0], "limited_s": 0.0, "worked_s": 1.0}
        told, line = write_event(self.LEASE, Rollout(info_of(line), line), **about)
        marks = rf"{self.LEASE}|{self.TASK}|{self.INDEX}|{self.ID}".encode()
        self._names = [each.decode() for each in re.findall(marks, told)]
        self._told = re.sub(marks, b"%s", told.replace(b"%", b"%%"))
        self._line = bytes(line)

    def make(self, number: int, attempt: Attempt) -> Event:
        task_id, _, _, index = attempt.key
        of = {
            f"{self.LEASE}": number,
            f"{self.TASK}": attempt.task.task_index,
            f"{self.INDEX}": index,
        }
        of[self.ID] = task_id
        values = tuple(f"{of[name]}".encode() for name in self._names)
        return Event(self._told % values, self._line)


@dataclass
class Sink:
    """Counts what comes out."""

    metrics: Metrics = field(default_factory=Metrics)
    number: int = 0

    def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        for outcome in outcomes:
            if isinstance(outcome, Rollout):
                self.number += 1
                self.metrics.add(outcome)
        return outcomes

    def append_turn(self, turn: StoredTurn) -> None:
        return


@dataclass
class Driver:
    """The driver's side, and the CPU time that its simulated workers take."""

    leases: Leases
    exchange: Exchange
    cpu_of_workers_s: float = 0.0
    num_calls: int = 0


async def simulate(
    num_workers: int, num_attempts: int, num_repeats: int, num_lost: int
) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    leases = Leases(loop.time, LEASE_S)
    driver = Driver(leases, Exchange(leases, {}, lambda text, **fields: None))
    sink, limit = Sink(), num_workers * IN_FLIGHT

    def begin(attempt: Attempt, slot: Slot) -> Lease:
        def end(found: Outcome | PeerLost | None) -> Outcome | None:
            return found if isinstance(found, Rollout) else None

        return leases.lease(attempt, slot, end)

    schedule = Schedule(Attempts(attempts(num_attempts, num_repeats)), begin, sink, lambda: limit)
    schedule._filled = limit  # the first wave is paced by CPU time, which is not virtual
    template = Template()
    workers = [
        asyncio.create_task(run_worker(driver, number, template)) for number in range(num_workers)
    ]
    watch = asyncio.create_task(watch_silent(leases))
    again_at = 0.0
    lost_at = 0.0
    said = began = time.perf_counter()
    async for batch in schedule.batches():
        for _ in batch:
            pass
        if time.perf_counter() - said > SAY_EVERY_S:
            said = time.perf_counter()
            each = (time.process_time() - driver.cpu_of_workers_s) / sink.number * 1e6
            text = f"{said - began:5.0f} s: {sink.number:,} rollouts, {each:.1f} µs each"
            print(f"{text}, {peak_mb():.0f} MB", file=sys.stderr, flush=True)
        if num_lost and not lost_at and sink.number > num_attempts // 2:
            lost_at = loop.time() + SHORTEST_S  # in the middle of their rollouts
            for worker in workers[:num_lost]:
                loop.call_at(lost_at, worker.cancel)
        if lost_at and not again_at and leases.num_again and not leases.num_waiting:
            again_at = loop.time()
    for task in [watch, *workers]:
        task.cancel()
    await asyncio.gather(watch, *workers, return_exceptions=True)
    return {
        "rollouts": sink.number,
        "exchanges": driver.num_calls,
        "virtual_s": loop.time(),
        "given_again": leases.num_again,
        "noticed_after_s": again_at - lost_at,
        "cpu_of_workers_s": driver.cpu_of_workers_s,
    }


async def watch_silent(leases: Leases) -> None:
    while True:
        await asyncio.sleep(1.0)
        leases.lose_silent()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Busy:
    """Context that counts the CPU time within it as that of the simulated workers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._driver.cpu_of_workers_s += time.process_time() - self._began


async def run_worker(driver: Driver, number: int, template: Template) -> None:
    """One worker: it asks for work, takes a second for each, and brings what it has."""
    loop, busy = asyncio.get_running_loop(), Busy(driver)
    name, calls, has_work = f"w{number}", itertools.count(1), asyncio.Event()
    draw, gather_s = random.Random(number), GATHER_S
    begun: list[tuple[float, int, Any]] = []
    """A heap of what it works on, by the time of the end. A timer for each would be work of the
    event loop, which counts as the driver's."""
    driver.leases.join(name, f"worker {number}")

    async def ask(channel: str, wait_s: float, brought: list[Event]) -> None:
        nonlocal gather_s
        with busy:
            head = {"worker": name, "title": name, "channel": channel, "call": next(calls)}
            head |= {"load": [], "want": 256, "wait_s": wait_s}
            raw = write_message(orjson.dumps(head), brought)
            driver.num_calls += 1
        found = await driver.exchange.exchange(read_message(raw))
        with busy:
            reply = orjson.loads(found)
            gather_s = max(GATHER_S, reply["gather_s"])
            for number, attempt in decode_leases(reply):
                end = loop.time() + draw.uniform(SHORTEST_S, LONGEST_S)
                heappush(begun, (end, number, attempt))
            if begun:
                has_work.set()

    def finish() -> list[Event]:
        """What has ended by now."""
        found, now = list[Event](), loop.time()
        while begun and begun[0][0] <= now:
            found.append(template.make(*heappop(begun)[1:]))
        if not begun:
            has_work.clear()
        return found

    async def bring() -> None:
        while True:
            await has_work.wait()
            await asyncio.sleep(begun[0][0] - loop.time() + gather_s)
            with busy:
                brought = finish()
            await ask("bring", 0.0, brought)

    bringing = asyncio.create_task(bring())
    try:
        while True:
            await ask("wait", WAIT_S, [])
    finally:
        bringing.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--attempts", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=8, help="rollouts of each task")
    parser.add_argument("--lost", type=int, default=100, help="workers, fewer than there are")
    args = parser.parse_args()
    if args.lost >= args.workers:
        parser.error(f"--lost {args.lost}: some of the {args.workers} workers must go on")
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as in a real driver
    began, cpu = time.perf_counter(), time.process_time()
    found = run_virtual(simulate(args.workers, args.attempts, args.repeats, args.lost))
    cpu_s, took_s = time.process_time() - cpu, time.perf_counter() - began
    per_rollout = (cpu_s - found["cpu_of_workers_s"]) / found["rollouts"] * 1e6
    calls = found["exchanges"]
    print(f"{args.workers:,} workers, {found['rollouts']:,} rollouts, {took_s:.0f} s of real time")
    print(f"CPU of the driver: {per_rollout:.0f} µs a rollout")
    print(f"memory: {peak_mb():.0f} MB at most; {found['virtual_s']:.0f} s of virtual time")
    print(f"exchanges: {calls:,}, {found['rollouts'] / calls:.1f} rollouts each")
    if args.lost:
        print(
            f"{args.lost:,} workers lost at once: {found['given_again']:,} leases given to others,"
            f" the last one {found['noticed_after_s']:.1f} s later"
        )


if __name__ == "__main__":
    main()
