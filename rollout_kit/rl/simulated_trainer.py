"""A trainer that trains nothing: it takes batches at a given pace, to load a buffer and a setting
of staleness without a model to train."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..types import JsonObject
from .buffer.buffer import Buffer
from .buffer.group import GroupBatch


@dataclass
class SimulatedTrainer:
    """Each step takes `step_s`, and then its weights `sync_s` to reach the servers."""

    buffer: Buffer
    batch: int
    step_s: float = 1.0
    sync_s: float = 0.0
    max_staleness: int | None = None
    clock: Callable[[], float] = time.monotonic
    steps: int = 0
    groups: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 0.0
    lost: int = 0
    """Groups whose lease ran out during their step."""
    staleness: Counter[int] = field(default_factory=Counter)

    async def train(
        self,
        steps: int | None = None,
        timeout_s: float | None = None,
        on_step: Callable[[JsonObject], object] = lambda figures: None,
    ) -> JsonObject:
        """Train so many steps, or until a batch is not there in time or none will come; returns the
        figures."""
        began, buffer = self.clock(), self.buffer
        if (version := (await buffer.stats())["version"]) is None:
            await buffer.set_version(version := 0)
        while steps is None or self.steps < steps:
            asked = self.clock()
            batch = await buffer.get(
                self.batch, max_staleness=self.max_staleness, timeout_s=timeout_s
            )
            self.waited_s += self.clock() - asked
            if batch is None:
                break
            await self._step(batch, version)
            await asyncio.sleep(self.sync_s)
            version += 1
            await buffer.set_version(version)
            self.elapsed_s = self.clock() - began
            on_step(self.figures())
        self.elapsed_s = self.clock() - began
        return self.figures()

    async def _step(self, batch: GroupBatch, version: int) -> None:
        for group in batch.groups:
            if group.version_first is not None:
                self.staleness[version - group.version_first] += 1
        left_s, part_s = self.step_s, self.buffer.policy.visibility_s / 3
        while left_s > part_s:
            await asyncio.sleep(part_s)
            await self.buffer.extend(batch.lease)
            left_s -= part_s
        await asyncio.sleep(left_s)
        acked = await self.buffer.ack(batch.lease)
        self.lost += len(batch) - len(acked)
        self.groups += len(acked)
        self.steps += 1

    def figures(self) -> JsonObject:
        elapsed_s = self.elapsed_s or 1e-9
        return {
            "steps": self.steps,
            "groups": self.groups,
            "groups_s": self.groups / elapsed_s,
            "elapsed_s": self.elapsed_s,
            "waited_s": self.waited_s,
            "idle_share": self.waited_s / elapsed_s,
            "lost": self.lost,
            "staleness": {str(lag): number for lag, number in sorted(self.staleness.items())},
        }
