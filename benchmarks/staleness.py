"""Asynchronous against synchronous training: a simulated trainer and model under a virtual clock.

python -m benchmarks.staleness [sigma]    # seconds of CPU, an hour of simulated time

The model has 128 places. A rollout takes a lognormal time: median 20 s and sigma 1, so the mean is
33 s, and one of a hundred takes 205 s. A step takes 32 groups of 8 rollouts and 60 s, and its
weights 2 s to reach the model. The buffer itself admits the groups, and drops what gets too stale.
"""

import asyncio
import random
import sys
from dataclasses import dataclass

from rollout_kit.api.testing import run_virtual
from rollout_kit.rl import BufferedGroup, BufferPolicy, MemoryBuffer
from rollout_kit.rl.simulated_trainer import SimulatedTrainer

PLACES, GROUP, BATCH, STEPS = 128, 8, 32, 40

MEDIAN_S, STEP_S, SYNC_S = 20.0, 60.0, 2.0

SIGMA = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0


@dataclass
class SimulatedModel:
    """Takes a time for each rollout, so many at once."""

    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self._places, self._random = asyncio.Semaphore(PLACES), random.Random(0)

    async def answer(self) -> float:
        took_s = MEDIAN_S * self._random.lognormvariate(0, SIGMA)
        async with self._places:
            await asyncio.sleep(took_s)
            self.busy_s += took_s
        return float(took_s < MEDIAN_S)


async def produce(buffer: MemoryBuffer, model: SimulatedModel) -> None:
    """Begin groups while the buffer gives tickets for them."""
    running: set[asyncio.Task[None]] = set()

    async def make(number: int, ticket: str) -> None:
        version = buffer.shelf.version
        rewards = await asyncio.gather(*(model.answer() for _ in range(GROUP)))
        lines = [{"reward": reward} for reward in rewards]
        await buffer.put(BufferedGroup(f"{number}", lines, [], version, version), ticket=ticket)

    number = 0
    while True:
        for ticket in await buffer.reserve(BATCH):
            task = asyncio.create_task(make(number := number + 1, ticket))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(0.1)


async def simulate(staleness: int) -> dict[str, float]:
    loop, model = asyncio.get_running_loop(), SimulatedModel()
    buffer = MemoryBuffer(
        BufferPolicy(batch=BATCH, staleness=staleness, reserve_s=1e9), clock=loop.time
    )
    trainer = SimulatedTrainer(buffer, BATCH, STEP_S, SYNC_S, clock=loop.time)
    producing = asyncio.create_task(produce(buffer, model))
    figures = await trainer.train(STEPS)
    producing.cancel()
    lags = {int(lag): number for lag, number in figures["staleness"].items()}
    return {
        "step_s": figures["elapsed_s"] / STEPS,
        "model_idle": 1 - model.busy_s / PLACES / figures["elapsed_s"],
        "trainer_idle": figures["idle_share"],
        "mean_staleness": sum(lag * number for lag, number in lags.items()) / figures["groups"],
        "max_staleness": max(lags),
        "dropped": sum((await buffer.stats())["dropped"].values()),
    }


def main() -> None:
    first = 0.0
    heads = (
        "staleness | s a step | speed-up | model idle | trainer waits | mean staleness | dropped"
    )
    print(f"| {heads} |")
    print("|---|---|---|---|---|---|---|")
    for staleness in (0, 1, 2, 4):
        found = run_virtual(simulate(staleness))
        first = first or found["step_s"]
        print(
            f"| {staleness} | {found['step_s']:.0f} | {first / found['step_s']:.2f} × |"
            f" {found['model_idle']:.0%} | {found['trainer_idle']:.0%} |"
            f" {found['mean_staleness']:.2f} (at most {found['max_staleness']}) |"
            f" {found['dropped']:.0f} |"
        )


if __name__ == "__main__":
    main()
