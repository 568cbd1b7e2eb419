"""One run: attempts of a source through a runner into the journal, within the command's limits.

The loop only observes. An outcome is on disk before the loop sees it, and what is in flight goes on
while the loop waits for its consumer.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

from ..analysis.metrics.summary import Metrics
from ..analysis.metrics.tally import Tally
from ..errors import OutputError, RolloutError, StopRun
from ..serving.transport.loop import beside
from ..session import Session, entered
from ..store.lines import MadeRollout
from ..types import Attempt, Failure, Outcome, Rollout, Say
from .audit import VerdictAudit
from .cheapest.ways import ALL_ALIKE
from .counts import WholeMetrics
from .ending import Ending, RunEnd, RunLimits
from .groups.following import GroupFollower
from .groups.scoring import GroupScoring
from .pacing.budget import within
from .pacing.capacity import Size
from .pacing.give_up import GiveUp
from .pacing.limiter import Limiter
from .pacing.meter import Meter
from .pacing.watch import SAY_EVERY_S, Watch
from .plan import Collection
from .schedule import Attempts, Schedule
from .tracebacks import Tracebacks

TICK_S = 1.0
"""How often written lines are forced to disk, and the files are checked."""

METRICS_EVERY_S = 60.0
"""How often the metrics file is written during a run."""

QUIET_S = 60.0
"""After this time without an outcome, a line says what the attempts in flight wait for."""

NUM_SIZED = 8
"""Rollouts whose rows tell the size of requests."""

OVERLOADED = frozenset({429, 503, 529})
"""Statuses after which an adaptive limit is cut."""


class Observer(Protocol):
    """Follows the outcomes of a run."""

    def take(self, outcome: Outcome) -> object: ...


class Run:
    """`attempts` are those of the collection's source unless others are given."""

    def __init__(
        self,
        collection: Collection,
        *,
        say: Say,
        ends: Sequence["asyncio.Task[str]"] = (),
        attempts: Sequence[Attempt] | None = None,
        write_metrics: Callable[["Run"], object] = lambda run: None,
        on_counted: Callable[[], object] = lambda: None,
    ) -> None:
        command, runner, source = collection.command, collection.runner, collection.source
        if attempts is not None:  # a canary is to be quick
            limits = replace(runner.limits, batch_key="")
            runner = replace(runner, limits=limits, ways=ALL_ALIKE)
        self.collection = collection
        self.command, self.runner, self.source = command, runner, source
        self.num_given = None if attempts is None else len(attempts)
        self.end = RunEnd(command.drain_timeout_s, say)
        self.tally = Tally()
        self.metrics = Metrics.of_run(command.pass_threshold, source.covers, source.arm_ids)
        self.parallel = collection.parts.make_limit(collection.parallelism)
        self.meter = self.parallel.tell(Meter(self.limiter, collection.journal, runner.load))
        self.audit: VerdictAudit | None = None
        self._say, self._ends = say, ends
        self._write_metrics, self._on_counted = write_metrics, on_counted
        budget = collection.parts.make_budget(command)
        budget.bills.append(runner.bill)
        self.limits = RunLimits(command, budget, say, self.end)
        is_whole = attempts is None and command.only is None
        self.groups = GroupFollower(collection, self.end.fail)
        parts = self.groups, collection, self.metrics, self.end.fail
        self.scoring = GroupScoring(*parts, is_whole=is_whole)
        self.schedule = Schedule(
            source if attempts is None else Attempts(iter(attempts)),
            runner.begin,
            self.groups,
            within(self.parallel.limit_for(self), self.limits.budget),
            room=self.limits.budget.room,
            measure=self.meter.take,
        )
        self.end.set_parts(self.schedule, self.groups, self.scoring)
        journal = collection.journal
        self.whole = WholeMetrics(
            self.metrics,
            source,
            journal.earlier_rows(),
            journal.contents.pending,
            self.groups.add_earlier,
        )
        self._give_up = self._judge()
        self._tracebacks = Tracebacks(say)
        self._observers: list[Observer] = [source, self._give_up]
        fraction, seed = collection.audit
        if fraction:
            self.audit = VerdictAudit(runner, fraction, seed)
            self.observe(self.audit)
        self._last_outcome = 0.0
        self.each_second: list[Callable[[], object]] = []
        """Called once a second while the run goes on."""

    @property
    def limiter(self) -> Limiter:
        return self.parallel.limiter

    @property
    def ending(self) -> Ending:
        return self.end.kind

    @property
    def is_counted(self) -> bool:
        """Whether the metrics have everything that was on disk before the run."""
        return self.whole.is_complete

    @property
    def num_running(self) -> int:
        return self.schedule.in_flight

    @property
    def num_left(self) -> int:
        counts, schedule = self.source.counts, self.schedule
        planned = counts.to_collect + counts.to_verify + counts.to_copy
        return max(1, planned - schedule.num_begun) if schedule.may_begin_more else 0

    def refresh(self) -> None:
        self.limits.check()
        self.schedule.refresh()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is in flight."""
        return self.schedule.is_quiet and not self.scoring.stages()

    def stages(self) -> Counter[str]:
        """What is waited for → how often."""
        return self.schedule.stages() + self.scoring.stages()

    def observe(self, observer: Observer) -> None:
        """Have an observer follow every outcome."""
        self._observers.append(observer)

    async def outcomes(self) -> AsyncGenerator[Outcome, None]:
        """Each outcome once it is on disk. StopRun or OutputError if the run cannot go on."""
        batches = self.batches(1)
        try:
            async for outcomes in batches:
                for outcome in outcomes:
                    yield outcome
        finally:
            await batches.aclose()

    async def batches(self, most: int | None = None) -> AsyncGenerator[Sequence[Outcome], None]:
        """The same, all that there are by now or `most`, before their places are filled again."""
        loop, schedule = asyncio.get_running_loop(), self.schedule
        self._last_outcome = loop.time()
        async with AsyncExitStack() as stack:
            stack.enter_context(self.meter.measure_run())
            stack.callback(self.end.close)
            stack.callback(self.limits.stop)
            for work in self._beside():
                await stack.enter_async_context(beside(work))
            counted = await stack.enter_async_context(beside(self._count_rest()))
            if self.audit:
                stack.push_async_callback(self.audit.cancel)
            stack.push_async_callback(self.scoring.close)
            stack.callback(self.groups.close)
            self.limits.start()
            batches = schedule.batches()
            stack.push_async_callback(batches.aclose)
            async for batch in batches:
                yield self._observe(islice(batch, most), loop.time())
            self.end.raise_error()
            self.collection.journal.check()
            self.collection.journal.sync()
            if self.ending is not Ending.INTERRUPTED:
                if self.ending is Ending.DONE or not self.source.reads_as_asked:
                    await counted
                if self.audit:
                    await self.audit.finish()
            await self.groups.finish()
            await self.scoring.drain()
            self.end.raise_error()
            self.collection.journal.finish()
        if not self.is_counted:  # an interrupt came first
            await self.whole.know_tasks()
            await self.whole.count_rows()

    async def cancel_batches(self) -> int:
        """Have the providers end the batches that are under way; returns their number. What they
        have answered by then is kept for the next run."""
        number, peers = 0, self.runner.peers
        for server in self.collection.batching:
            with suppress(RolloutError):
                number += (await peers.call(server, "/batches", {"cancel": True}))["cancelled"]
        return number

    async def warm_up(self) -> None:
        """Ask each model for a few tokens; errors are left to the run itself."""
        warmup = self.collection.warmup
        params = {"input": "warm-up", "max_output_tokens": 16, **warmup.params}
        with entered(Session(spent=self.runner.bill.spent)):
            for model in self.models():
                for _ in range(warmup.number):
                    with suppress(RolloutError):
                        await self.runner.peers.call(model, "/v1/responses", params, dict)

    def _judge(self) -> GiveUp:
        """What decides that the run cannot succeed."""
        source, contents = self.source, self.collection.journal.contents
        done = contents.done
        return GiveUp(
            {*self.models(), *source.verifiers()},
            self.limiter(),
            owed=lambda: source.num_owed,
            has_succeeded=any(source.covers(*which) for which in done.numbers()),
            has_verified=any(
                (agent, plan.verifier) in contents.verifiers
                for agent, plan in self.runner.agents.items()
            ),
            settled=lambda: self.schedule.num_settled,
        )

    def models(self) -> set[str]:
        """The model servers of this run's agents."""
        plans = self.runner.agents.values()
        return {plan.model_server for plan in plans if plan.model_server is not None}

    def _observe(self, outcomes: Iterator[Outcome], now: float) -> list[Outcome]:
        seen: list[Outcome] = []
        give_up = self._give_up
        num_final, is_overloaded = 0, False
        in_flight = self.parallel.num_running(self)  # iterating over `outcomes` reduces it
        for outcome in outcomes:
            seen.append(outcome)
            num_final += self.tally.take(outcome)
            if isinstance(outcome, Rollout):
                if isinstance(outcome, MadeRollout):
                    outcome.encoded = None  # it is written; an observer may keep the rollout
                self.whole.add(outcome)
            elif outcome.error is not None:
                self._tracebacks.show(outcome.error)
                is_overloaded |= isinstance(outcome, Failure) and outcome.error.status in OVERLOADED
            for observer in self._observers:
                observer.take(outcome)
            if give_up.reason and self.command.stop_early:
                raise StopRun(give_up.reason)
        if num_final:
            self._last_outcome = now
            self.limiter.record_outcomes(now, num_final, in_flight, overloaded=is_overloaded)
        self.limits.check()
        return seen

    def _beside(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What goes on beside the loop."""
        yield self.meter.probe()
        yield self._tick()
        yield self._watch_servers()
        yield self.groups.watch()
        yield self.schedule.aside.watch(self._ask_settled, self.schedule.refresh)
        yield self.parallel.watch(self._watch_models)

    async def _watch_models(self, limiter: Limiter) -> None:
        """Show the limiter and the meter the loads of the model servers."""
        schedule = self.schedule
        watch = Watch(
            limiter,
            self.models(),
            partial(self.runner.peers.call_each, path="/load"),
            self._say,
            0.0 if self.command.json_output else SAY_EVERY_S,
            in_flight=lambda: self.parallel.num_running(self),
            size=self._size,
            take=self.meter.take_load,
            refresh=schedule.refresh,
        )
        await watch.watch()

    async def _ask_settled(self, server: str, batches: Sequence[str]) -> Sequence[str]:
        """Those of the batches of a model server that have ended."""
        reply = await self.runner.peers.call(server, "/batches", {"ids": batches})
        return reply["settled"]

    def _size(self) -> Size | None:
        """The size of requests, from the first rollouts in flight."""
        slots = islice(self.schedule.slots.values(), NUM_SIZED)
        return Size.of(slot.attempt.task.row for slot in slots if slot.attempt)

    async def _tick(self) -> None:
        """Each second force lines to disk; now and then write metrics, or report a silence."""
        loop = asyncio.get_running_loop()
        written = reported = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self._check_output()
            for act in self.each_second:
                act()
            if self.command.fsync == "second":
                await self._force()
            if now - written >= METRICS_EVERY_S and self.is_counted:
                written = now
                try:
                    self._write_metrics(self)
                except OutputError as error:
                    self._say(f"warning: {error}")
            if self.schedule.is_paused:
                reported = now
            elif now - max(self._last_outcome, reported) >= QUIET_S:
                reported = now
                self._report_silence(now - self._last_outcome)

    def _check_output(self) -> None:
        """End the run if another program touched its files; what is in flight may finish."""
        try:
            self.collection.journal.check()
        except OutputError as error:
            self.end.let_finish(error)

    async def _force(self) -> None:
        """Force lines to disk. A failure ends the run at once: no line is safe any more."""
        try:
            await asyncio.to_thread(self.collection.journal.sync)
        except OutputError as error:
            self.end.end_rollouts(error)

    def _report_silence(self, quiet_s: float) -> None:
        stages = self.stages()
        what = ", ".join(f"{number} for {stage}" for stage, number in stages.most_common(5))
        text = f"nothing has finished for {quiet_s:.0f} s; in flight and waiting: {what}"
        self._say(text, event="waiting", quiet_s=quiet_s, stages=dict(stages))

    async def _watch_servers(self) -> None:
        """End the run when a server of its own is given up, instead of failing row by row."""
        if self._ends:
            done, _ = await asyncio.wait(self._ends, return_when=asyncio.FIRST_COMPLETED)
            self.end.end_rollouts(StopRun(f"stopped: {done.pop().result()}"))

    async def _count_rest(self) -> None:
        """What can wait for the first requests: a long input, and the metrics of earlier rows."""
        await self.schedule.begun.wait()
        is_late = self.source.is_open_ended
        if is_late:
            await self.source.count_rest()
        await self.whole.know_tasks()
        if is_late:
            self._on_counted()
        await self.whole.count_rows()
        self.whole.is_complete = True
        await self.groups.catch_up()
