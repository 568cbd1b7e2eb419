"""A schedule driven to its end.

Its outcomes are taken one by one. Beside that rows are forced to disk, the metrics are renewed, a
silence is broken, Ctrl-C and limits drain, and a server process of ours that is given up takes the
run along.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import InitVar, dataclass, field
from functools import partial

from ..commands.drain import End, draining
from ..commands.progress import Progress
from ..config.keys.commands import RolloutsCommand
from ..errors import OutputError, RolloutError, StopRun
from ..pacing.bill import Bill
from ..pacing.budget import Budget, within
from ..pacing.limiter import Limiter
from ..pacing.meter import Meter
from ..pacing.watch import Watch
from ..store.journal import Journal
from ..types import Attempt, Failure, Outcome, Unverified
from .schedule import Schedule, Slot

TICK_S = 1.0
"""How often what was written is forced to disk."""

METRICS_EVERY_S = 60.0
"""How often the metrics file is renewed while the run goes on."""

QUIET_S = 60.0
"""Without a single completion for this long, people are told what everything waits for."""


Later = Callable[[], Coroutine[None, None, None]]


@dataclass(slots=True)
class Drive:
    """What `runner` makes of `attempts`, within the limits of parallelism and of the budget.

    `take` counts an outcome, which is on disk already.
    """

    attempts: InitVar[Iterator[Attempt | None]]
    runner: InitVar[Callable[[Attempt, Slot], Awaitable[Outcome]]]
    bill: InitVar[Bill]
    command: RolloutsCommand
    limiter: Limiter
    journal: Journal
    progress: Progress
    ends: list[asyncio.Task[str]]
    take: Callable[[Outcome], None]
    write_metrics: Callable[[], object]
    watch: Watch | None = None
    """Where the limit adapts itself."""
    schedule: Schedule = field(init=False)
    meter: Meter = field(init=False)
    budget: Budget | None = field(init=False)
    fatal: StopRun | None = None
    last_completion: float = 0.0

    def __post_init__(
        self,
        attempts: Iterator[Attempt | None],
        runner: Callable[[Attempt, Slot], Awaitable[Outcome]],
        bill: Bill,
    ) -> None:
        self.progress.bill = bill
        self.budget = Budget.of(self.command, bill)
        self.meter = Meter(runner, self.limiter, self.journal)
        limit = within(self.limiter, self.budget)
        keep = partial(journalled, self.journal)
        self.schedule = Schedule(attempts, self.meter, limit, keep=keep)

    async def run(self, counting: Later | None = None) -> End:
        """Until everything is done or stopped. `counting` goes on beside it, once the first
        attempts are under way, and is waited for unless the run is interrupted."""
        schedule, loop = self.schedule, asyncio.get_running_loop()
        self.last_completion = loop.time()
        async with AsyncExitStack() as stack:
            stack.callback(self.progress.close)
            stack.enter_context(self.meter.running_now())
            await stack.enter_async_context(beside(self.meter.probe()))
            await stack.enter_async_context(beside(self._tick()))
            if self.watch:
                await stack.enter_async_context(beside(self.watch.go()))
            counted = await stack.enter_async_context(beside(self._once_begun(counting)))
            drain = stack.enter_context(
                draining(schedule, self.command, self.budget, self.progress.say)
            )
            await stack.enter_async_context(beside(self._watch_children()))
            outcomes = schedule.outcomes()
            try:
                async for outcome in outcomes:
                    self.take(outcome)
                    self.progress.update(outcome, schedule.in_flight)
                    if not (isinstance(outcome, Unverified) and outcome.error is None):
                        self.last_completion = now = loop.time()
                        overloaded = _overloaded(outcome)
                        self.limiter.completed(now, schedule.in_flight, overloaded=overloaded)
                        drain.check()
            finally:
                await outcomes.aclose()
            if self.fatal:
                raise self.fatal
            if drain.end is not End.INTERRUPTED:
                await counted
        return drain.end

    async def _once_begun(self, counting: Later | None) -> None:
        if counting:
            await self.schedule.begun.wait()
            await counting()

    async def _tick(self) -> None:
        """Once a second: force rows to disk; now and then: renew the metrics, break a silence."""
        loop = asyncio.get_running_loop()
        written = told = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self.progress.bottleneck = self.meter.shown()
            try:
                if self.command.fsync == "second":
                    await asyncio.to_thread(self.journal.sync)
                if now - written >= METRICS_EVERY_S:
                    written = now
                    self.write_metrics()
            except (OSError, OutputError) as error:
                self.progress.say(f"warning: {error}")
            if now - max(self.last_completion, told) >= QUIET_S:
                told = now
                self.progress.waiting(self.schedule.waiting_for(), now - self.last_completion)

    async def _watch_children(self) -> None:
        """A server process of ours that is given up takes the run along, not one row after
        another."""
        if not self.ends:
            return
        done, _ = await asyncio.wait(self.ends, return_when=asyncio.FIRST_COMPLETED)
        self.fatal = StopRun(f"stopped: {done.pop().result()}")
        self.schedule.cancel()


def journalled(journal: Journal, outcome: Outcome) -> Outcome:
    """The outcome once it is on disk; a Failure where it could not be put there."""
    try:
        if not isinstance(outcome, Failure):
            journal.append(outcome)
    except TypeError as error:
        message = f"the rollout cannot be written as JSON: {error}"
        broken = RolloutError(message, server=outcome.key.agent, retryable=False)
        return Failure(outcome.key, 0, broken, [{"message": message}])
    return outcome


def _overloaded(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.error.status in (429, 503, 529)


@asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    """`work` goes on while inside, and ends with it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
