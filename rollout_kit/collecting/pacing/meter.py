"""Measures where the time of a run goes: a few sums per outcome, and a probe of the event loop.

The outcome has the duration of each part of a rollout; the meter adds how long its slot was held,
and how busy the process was.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any, Protocol

from ...errors import THROTTLED
from ...time_limit import running_loop
from ...types import Failure, Outcome, Unverified
from .bottleneck import Bottleneck, Client, SlotTime, verdict
from .limiter import Fixed, Limiter
from .probe import LoopProbe, WorkerLoad, read_starved_s

SETTLED_S = 5.0
"""Show no bottleneck earlier; the first wave of rollouts is not representative."""

MOVED = 0.05
"""Smallest change of a share that is shown."""


class Held(Protocol):
    """The part of a slot that the meter reads."""

    @property
    def began(self) -> float: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def is_stored(self) -> bool: ...

    @property
    def freed_at(self) -> float | None: ...

    @property
    def limited_s(self) -> float: ...

    @property
    def worked_s(self) -> float | None: ...


class Writes(Protocol):
    """The part of a journal that the meter reads."""

    writing_s: float


@dataclass(slots=True)
class Meter:
    """Takes the outcomes of a run."""

    limiter: Limiter
    journal: Writes
    load: Callable[[], WorkerLoad | None] = lambda: None
    """What workers report of themselves, if workers run the attempts."""
    spent: SlotTime = field(init=False)
    began: float = 0.0
    _cpu_began: float = 0.0
    _starved_began: float = 0.0
    _probe: LoopProbe = field(default_factory=LoopProbe)
    _client: Client | None = None
    """Set once the run has ended."""
    _shown: Bottleneck | None = None
    _candidate: str = ""

    def __post_init__(self) -> None:
        self.spent = SlotTime(self.limit)

    @property
    def limit(self) -> int:
        """The current limit."""
        return self.limiter()

    def take(self, slot: Held, outcome: Outcome) -> None:
        """Measure an attempt that has just ended."""
        ended, spent, began = perf_counter(), self.spent, slot.began
        is_stored, in_flight, freed_at = slot.is_stored, slot.in_flight, slot.freed_at
        lost_to_limit = slot.limited_s
        held = (ended if freed_at is None else freed_at) - began
        spent.outcomes += 1
        spent.slots += held
        if ended - began > spent.longest:
            spent.longest = ended - began
        if (worked_s := slot.worked_s) is not None and held > worked_s:
            spent.workers += held - worked_s  # the wait for a worker and for its message
            held = worked_s
        if isinstance(outcome, Failure):
            limited = held if outcome.error.status in THROTTLED else min(lost_to_limit, held)
            spent.rate_limit += limited
            spent.failed += held - limited
            return
        info = outcome.info
        attempt, duration, queue, model = info.attempt, info.duration_s, info.queue_s, info.model_s
        tools, verify, limited = info.tool_s, info.verify_s, info.rate_limit_s
        retries = info.retry_s
        verify = verify or 0.0
        if is_stored:  # its other times are of an earlier run
            model = tools = limited = retries = queue = 0.0
            duration = verify
        else:
            model, tools, limited = model or 0.0, tools or 0.0, limited or 0.0
            retries, queue, duration = retries or 0.0, queue or 0.0, duration or 0.0
        if isinstance(outcome, Unverified):
            verify = max(0.0, ended - began - queue - duration)
            duration += verify
        agent = max(0.0, duration - verify - model - tools - limited - retries)
        if freed_at is not None:  # the rest of the verification held no slot
            verify = max(0.0, verify - (ended - freed_at))
        failed = retries + max(0.0, queue - lost_to_limit)
        limited += lost_to_limit
        spent.model += model
        spent.tools += tools
        spent.verification += verify
        spent.agent += agent
        spent.rate_limit += limited
        spent.failed += failed
        spent.sessions += max(0.0, held - model - tools - verify - agent - limited - failed)
        if attempt == 1:
            first_turn = outcome.info.first_turn_s
            first_turn = model if first_turn is None else first_turn
            if not (is_stored or isinstance(self.limiter, Fixed)):
                waited = first_turn or agent  # without the model's time, the agent's
                self.limiter.record_time(running_loop().time(), in_flight, waited)
            growth = spent.growth
            if not growth["model"].is_known:
                growth["model"].add(in_flight, first_turn, began)
                growth["tools"].add(in_flight, tools, began)
                growth["verification"].add(in_flight, verify, began)
                growth["agent"].add(in_flight, agent, began)

    def take_load(self, load: Mapping[str, Any]) -> None:
        """Take a load of the model servers."""
        self.spent.take_load(load)

    def switch(self, limiter: Limiter) -> None:
        """Measure under another limiter from now on."""
        self.spent.room = self.spent.room or max(self.elapsed_s * self.limit, 1e-9)
        self.limiter, self.spent.limit = limiter, limiter()

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run so far, or of the whole run once it has ended; 0 before it begins."""
        if not self.began:
            return 0.0
        return self._client.elapsed_s if self._client else perf_counter() - self.began

    @contextmanager
    def measure_run(self) -> Iterator[None]:
        """Measure the run, which lasts from entry to exit."""
        self.began, self._cpu_began = perf_counter(), process_time()
        self._starved_began = read_starved_s()
        try:
            yield
        finally:
            self._client = self._client_now()

    async def probe(self) -> None:
        """Measure how busy the event loop is, until cancelled."""
        await self._probe.watch(self._count_room)

    def _count_room(self, seconds: float) -> None:
        if self.spent.room or not isinstance(self.limiter, Fixed):
            self.spent.limit = self.limit
            self.spent.room += seconds * self.limit

    def _client_now(self) -> Client:
        elapsed_s = max(perf_counter() - self.began, 1e-9)
        return Client(
            elapsed_s,
            busy=self._probe.busy_s / max(self._probe.probed_s, 1e-9),
            cpu=(process_time() - self._cpu_began) / elapsed_s,
            starved=(read_starved_s() - self._starved_began) / elapsed_s,
            journal=self.journal.writing_s / elapsed_s,
            workers=self.load(),
            probes=self._probe.probes,
        )

    def verdict(self) -> Bottleneck | None:
        """The bottleneck of the run so far, or of the whole run once it has ended."""
        return verdict(self.spent, self._client or self._client_now())

    def stable_verdict(self) -> Bottleneck | None:
        """The bottleneck to show, if called once a second: another one replaces it once found twice
        in a row, and a new share once it differs by MOVED."""
        if perf_counter() - self.began < SETTLED_S or (found := self.verdict()) is None:
            return self._shown
        if found.part != self._candidate:
            self._candidate = found.part
        elif (
            self._shown is None
            or self._shown.part != found.part
            or abs(self._shown.share - found.share) >= MOVED
        ):
            self._shown = found
        return self._shown
