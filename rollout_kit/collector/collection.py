"""One collection over a prepared plan: plan → schedule → run → journal → aggregate."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import orjson

from ..commands.announce import Announcement
from ..commands.drain import End
from ..commands.progress import Progress
from ..commands.report import FINISHED, Report, record
from ..errors import RolloutError
from ..pacing.give_up import GiveUp
from ..pacing.limiter import Adaptive, Limiter, limiter_of
from ..pacing.watch import Watch
from ..session import Session, entered
from ..store.lines import malformed_line, row_of
from ..store.tasks import Malformed
from ..types import Attempt, Failure, JsonObject, Key, Outcome, Rollout, Task, Unverified
from .drive import Drive
from .flakes import Flakes
from .plan import BREATH, owed
from .prepare import Prepared

MAX_NAMED = 5
"""Malformed lines that are printed; a file of the wrong kind would fill the screen."""


@dataclass(slots=True)
class Collection:
    """One run over a prepared plan."""

    run: Prepared
    progress: Progress
    plan: Announcement
    report: Report
    give_up: GiveUp
    ends: list[asyncio.Task[str]]
    limiter: Limiter
    earlier: Iterator[JsonObject]
    """Rollouts on disk that the metrics have not yet."""
    also: Callable[[Outcome], object] | None = None
    """Told of every outcome that is on disk, beside the metrics."""
    is_counted: bool = False
    finished: bool = False
    named: int = 0

    @classmethod
    def of(cls, run: Prepared, progress: Progress, ends: list[asyncio.Task[str]]) -> "Collection":
        plan = Announcement(run, progress)
        models = {agent.model_server for agent in run.runner.agents.values()}
        limiter = limiter_of(run.command.num_samples_in_parallel)
        give_up = GiveUp(models, limiter(), owed=0)
        done = run.journal.contents.done
        give_up.succeeded = any(
            scope == run.wanted.scope_of(agent) for agent, scope in done.kinds()
        )
        report, earlier = Report(run, progress, plan), run.journal.earlier_rows()
        if run.command.audit_fraction:
            report.flakes = Flakes(run.runner, run.command.audit_fraction, run.command.audit_seed)
        return cls(run, progress, plan, report, give_up, ends, limiter, earlier)

    async def shown(self) -> int:
        """The plan and the first request, and nothing else."""
        await self.plan.begin()
        self.finished = True
        attempt = next((each for each in self._attempts() if each is not None), None)
        if attempt is None:
            self.progress.say("Nothing is owed: no request would be sent.")
            return FINISHED
        request = orjson.dumps(attempt.task.row, option=orjson.OPT_INDENT_2).decode()
        is_stored = attempt.stored is not None
        what = "to verify only" if is_stored else f"POST {attempt.key.agent}/v1/responses"
        self.progress.say(f"First request ({what}):\n{request}", request=attempt.task.row)
        return FINISHED

    async def collected(self) -> int:
        """Run what is owed; the exit status."""
        await self.begin()
        return await self.gone_through()

    async def gone_through(self) -> int:
        """The same, once it has begun."""
        plan = self.plan
        self.progress.start(None if plan.open_ended else plan.counts.planned, plan.counts.done)
        status = self.report.end(await self.driven(self._attempts()))
        self.finished = True
        return status

    async def begin(self) -> None:
        """Tell the plan; nothing has been sent before."""
        await self.plan.begin()
        self.give_up.owed = self.plan.counts.to_collect
        if self.run.wanted.only is None:
            self.run.manifest.write()
        await self._warm_up()

    async def driven(self, attempts: Iterator[Attempt | None]) -> End:
        """Run these, and count what was there before."""
        run = self.run
        drive = Drive(
            attempts,
            run.runner,
            run.runner.bill,
            command=run.command,
            limiter=self.limiter,
            journal=run.journal,
            progress=self.progress,
            ends=self.ends,
            take=self._taken,
            write_metrics=self._write_metrics,
            watch=self._watch(),
        )
        self.report.meter = drive.meter
        end = await self._with_flakes(drive)
        for row in self.earlier:  # what an interrupt has left
            run.metrics.add(row)
        return end

    async def _with_flakes(self, drive: Drive) -> End:
        """The drive's end, and that of the verdicts that are made again beside it."""
        flakes = self.report.flakes
        if flakes is None:
            return await drive.run(self._counting)
        before = self.also

        def also(outcome: Outcome) -> None:
            flakes.take(outcome)
            if before:
                before(outcome)

        self.also = also
        try:
            end = await drive.run(self._counting)
            if end is not End.INTERRUPTED:
                await flakes.finish()
            return end
        finally:
            self.also = before
            await flakes.cancel()

    def _watch(self) -> Watch | None:
        if not isinstance(self.limiter, Adaptive):
            return None
        return Watch(self.limiter, self.run.runner.peers, self._models(), self.progress)

    def _models(self) -> set[str]:
        found = {plan.model_server for plan in self.run.runner.agents.values()}
        return {name for name in found if name is not None}

    async def _counting(self) -> None:
        """What may wait until the first requests are sent: the rest of a long input, and the
        metrics of the rollouts that were there."""
        if self.plan.open_ended:
            await self.plan.complete()
        for number, row in enumerate(self.earlier, 1):
            self.run.metrics.add(row)
            if number % BREATH == 0:
                await asyncio.sleep(0)
        self.is_counted = True

    def _write_metrics(self) -> None:
        """Of a run that goes on, once it has all that was there before."""
        if self.is_counted:
            self.report.write_metrics(meanwhile=True)

    def _taken(self, outcome: Outcome) -> None:
        """Count an outcome that is on disk."""
        journal, metrics = self.run.journal, self.run.metrics
        if self.also:
            self.also(outcome)
        match outcome:
            case Rollout(key=key, line=line):
                metrics.add(line)
                self.give_up.succeeded = True
                if key in journal.contents.pending:
                    self.report.unplanned += key not in self.plan.counts.to_verify
                    self.report.replayed_otherwise += "replay_differences" in line["rollout"]
            case Unverified(key=key, line=line, error=error):
                if error is not None:
                    index = line["_ng_task_index"]
                    tried = line.get("failure") or {"message": error.message}
                    self._record(Failure(key, index, error, [tried]))
            case Failure():
                self._record(outcome)

    def _record(self, failure: Failure) -> None:
        record(failure, self.run, self.report.reasons, self.give_up)

    def _attempts(self) -> Iterator[Attempt | None]:
        """Stored responses that wait for their verdict first, then what is to be collected."""
        run = self.run
        contents, only = run.journal.contents, run.wanted.only
        parked = (
            self._parked_attempt(key)
            for key in contents.pending
            if run.wanted.is_of_this_run(key)
            and key.agent in run.runner.agents
            and (
                key not in contents.refused
                if only is None
                else (key.task_id, key.rollout_index) == only
            )
        )
        return itertools.chain(parked, self.owed(self._named_malformed()))

    def owed(self, tasks: Iterable[Task | Malformed]) -> Iterator[Attempt | None]:
        """What is to be collected of these tasks."""
        contents, wanted = self.run.journal.contents, self.run.wanted
        refused = contents.refused if wanted.only is None else ()

        def settled(key: Key) -> bool:
            return key in contents.done or key in contents.pending or key in refused

        return owed(tasks, wanted, settled)

    def _parked_attempt(self, key: Key) -> Attempt:
        line = self.run.journal.pending_line(key)
        row = row_of(line)
        task = Task(key.task_id, line["_ng_task_index"], 0, key.agent, row)
        return Attempt(key, task, stored=line)

    def _named_malformed(self) -> Iterator[Task | Malformed]:
        """The input, each malformed line written to the failures file once."""
        known = self.run.journal.contents.malformed
        for task in self.run.reader.read():
            if isinstance(task, Malformed) and (self.run.source, task.line) not in known:
                self.named += 1
                if not self.run.command.dry_run:
                    self.run.journal.append_failure(malformed_line(task, self.run.source))
                if self.named <= MAX_NAMED:
                    self.progress.say(f"{self.run.source}:{task.line}: {task.message}")
                elif self.named == MAX_NAMED + 1:
                    self.progress.say("… further malformed lines are in the failures file only")
            yield task

    async def _warm_up(self) -> None:
        run = self.run
        params = {
            "input": "warm-up",
            "max_output_tokens": 16,
            **run.command.responses_create_params,
        }
        with entered(Session(spent=run.runner.bill.spent)):
            for model in self._models():
                for _ in range(run.command.warmup):
                    with suppress(RolloutError):  # the run itself will say it better
                        await run.runner.peers.call(model, "/v1/responses", params, dict)
