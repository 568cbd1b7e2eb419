"""Measures how busy an event loop is, and sums it over the workers of a run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time

PROBE_S = 0.125
"""Interval of the event loop's probes, which take 0.01 % of its time."""

BUSY_S = 50e-6
"""A longer `sleep(0)` means a busy event loop; on an idle one it returns within a tenth of this."""

LATE_S = 0.005
"""A timer this late means a busy event loop or busy other threads: timers are exact to 1 ms, and
the interpreter switches threads every 5 ms."""


@dataclass(slots=True)
class LoopProbe:
    """Time in which the event loop of this process was probed, and was found busy or late; how
    often it was probed."""

    probed_s: float = 0.0
    busy_s: float = 0.0
    probes: int = 0
    _cpu_began: float = field(default_factory=process_time)
    _starved_began: float = field(default_factory=lambda: read_starved_s())

    async def watch(self, on_probe: Callable[[float], object] = lambda seconds: None) -> None:
        """Probe until cancelled; `on_probe` is called with the seconds since the last time."""
        before = perf_counter()
        while True:
            await asyncio.sleep(PROBE_S)
            due = perf_counter()
            await asyncio.sleep(0)
            now = perf_counter()
            self.probes += 1
            self.probed_s += now - before
            on_probe(now - before)
            if due - before - PROBE_S > LATE_S or now - due > BUSY_S:
                self.busy_s += now - before
            before = now

    def figures(self) -> list[float]:
        """The values of a `WorkerLoad` for this process."""
        cpu_s, waited_s = process_time() - self._cpu_began, read_starved_s() - self._starved_began
        return [self.probed_s, self.busy_s, cpu_s, waited_s]


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """Of all workers together: seconds in which they were probed, found busy, used CPU, and were
    ready to run without a core."""

    probed_s: float = 0.0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    starved_s: float = 0.0

    @property
    def busy(self) -> float:
        """Share of the time in which a worker was busy."""
        return self.busy_s / max(self.probed_s, 1e-9)

    @property
    def is_computing(self) -> bool:
        """Whether workers are busy with CPU work, rather than blocked."""
        return self.cpu_s + self.starved_s >= self.busy_s / 2


def read_starved_s() -> float:
    """Seconds that the event loop's thread was ready to run without a core; 0 where unknown."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
