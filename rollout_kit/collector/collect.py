"""The collection: read → plan → schedule → run → journal → aggregate. The wiring, and what it
reports."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import orjson

from ..config.commands import CollectConfig
from ..config.load import Config
from ..errors import ConfigError, RolloutError
from ..types import Attempt, Failure, JsonObject, Key, Outcome, Rollout, Task, Unverified
from .announce import Announcement
from .drive import Drive, journalled
from .files import check_apart
from .giveup import GiveUp
from .limiter import Fixed, Limiter
from .lines import malformed_line, row_of
from .meter import Meter
from .plan import BREATH, owed
from .prepare import Prepared, output_paths, prepared
from .progress import Progress
from .reach import Reached, chosen_agent, input_path, reached
from .report import FINISHED, Report, record
from .schedule import Schedule
from .tasks import Malformed, input_file
from .throughput_log import check_log

MAX_NAMED = 5
"""Malformed lines that are printed; a file of the wrong kind would fill the screen."""


async def collect(config: Config, argv: Sequence[str], progress: Progress) -> int:
    """Collect what is owed into the output; returns the exit status."""
    command = config.command
    assert isinstance(command, CollectConfig)
    check(command)
    async with reached(config, command, progress.say) as servers:
        return await collect_through(servers, config, argv, progress)


async def collect_through(
    servers: Reached, config: Config, argv: Sequence[str], progress: Progress
) -> int:
    """The same through servers that are there already."""
    command = config.command
    assert isinstance(command, CollectConfig)
    agent = chosen_agent(servers, command)
    source = input_path(command, servers.values, agent)
    check_apart(source, output_paths(command))
    with input_file(source) as path:
        run = await prepared(config, argv, servers, source, path)
        collection = Collection.of(run, progress, servers.ends)
        try:
            if command.dry_run:
                return await collection.shown()
            return await collection.collected()
        finally:
            run.journal.close(clean=collection.finished)


def check(command: CollectConfig) -> None:
    """What the keys' types cannot say."""
    if command.output_jsonl_fpath is None:
        raise ConfigError("output_jsonl_fpath is missing: add +output_jsonl_fpath=rollouts.jsonl")
    repeats = command.num_repeats
    for number in repeats.values() if isinstance(repeats, dict) else [repeats]:
        if number < 1:
            raise ConfigError(f"num_repeats: must be at least 1, got {number}")
    parallel = command.num_samples_in_parallel
    if not isinstance(parallel, int):
        raise ConfigError(
            f"num_samples_in_parallel={parallel}: give an int; a limit that adapts itself is not"
            " available yet"
        )
    if parallel < 1:
        raise ConfigError(f"num_samples_in_parallel: must be at least 1, got {parallel}")
    check_log(command)


@dataclass(slots=True)
class Collection:
    """One run over a prepared plan."""

    run: Prepared
    progress: Progress
    plan: Announcement
    report: Report
    give_up: GiveUp
    ends: list[asyncio.Task[str]]
    earlier: Iterator[JsonObject]
    """Rollouts on disk that the metrics have not yet."""
    is_counted: bool = False
    finished: bool = False
    named: int = 0

    @classmethod
    def of(cls, run: Prepared, progress: Progress, ends: list[asyncio.Task[str]]) -> "Collection":
        plan = Announcement(run, progress)
        models = {agent.model_server for agent in run.runner.agents.values()}
        give_up = GiveUp(models, int(run.command.num_samples_in_parallel), owed=0)
        done = run.journal.contents.done
        give_up.succeeded = any(
            scope == run.wanted.scope_of(agent) for agent, scope in done.kinds()
        )
        report, earlier = Report(run, progress, plan), run.journal.earlier_rows()
        return cls(run, progress, plan, report, give_up, ends, earlier)

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
        run, progress, plan = self.run, self.progress, self.plan
        await plan.begin()
        self.give_up.owed = plan.counts.to_collect
        if run.wanted.only is None:
            run.manifest.write()
        await self._warm_up()
        limiter: Limiter = Fixed(int(run.command.num_samples_in_parallel))
        self.report.meter = meter = Meter(run.runner, limiter(), run.journal)
        drive = Drive(
            command=run.command,
            schedule=Schedule(
                self._attempts(), meter, limiter, keep=partial(journalled, run.journal)
            ),
            limiter=limiter,
            journal=run.journal,
            progress=progress,
            ends=self.ends,
            take=self._taken,
            write_metrics=self._write_metrics,
            meter=meter,
        )
        progress.start(None if plan.open_ended else plan.counts.planned, plan.counts.done)
        interrupted = await drive.run(self._counting)
        for row in self.earlier:  # what an interrupt has left
            run.metrics.add(row)
        status = self.report.end(interrupted=interrupted)
        self.finished = True
        return status

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
        refused = contents.refused if only is None else ()

        def settled(key: Key) -> bool:
            return key in contents.done or key in contents.pending or key in refused

        return itertools.chain(parked, owed(self._named_malformed(), run.wanted, settled))

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
        models = {plan.model_server for plan in run.runner.agents.values()} - {None}
        params = {
            "input": "warm-up",
            "max_output_tokens": 16,
            **run.command.responses_create_params,
        }
        for model in models:
            for _ in range(run.command.warmup):
                with suppress(RolloutError):  # the run itself will say it better
                    await run.runner.peers.call(str(model), "/v1/responses", params, dict)
