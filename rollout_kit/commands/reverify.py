"""Stored responses verified again, or for the first time: survey → plan → schedule → verify →
journal → compare. The wiring, and what it reports."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import orjson

from ..collector.drive import Drive
from ..collector.plan import BREATH, number_of
from ..collector.prepare import only_of, output_paths
from ..collector.reach import Reached, stored_path
from ..collector.renewal import Counts, Renewal, renewal
from ..collector.rollout import Limits, Runner
from ..collector.schedule import Slot
from ..collector.verifiers import Verifiers, reached_verifiers, verifiers
from ..config.keys.commands import ReverifyConfig
from ..config.load import Config
from ..errors import ConfigError
from ..pacing.give_up import GiveUp
from ..pacing.limiter import Fixed
from ..store.files import check_apart
from ..store.lines import malformed_line, row_of, without_verdict
from ..store.stored import Line, StoredFile, Survey, stored_lines
from ..store.tasks import Malformed, input_file
from ..types import Attempt, Failure, Key, Outcome, Rollout, Task, Unverified
from .progress import Progress
from .renewal_report import RenewalReport
from .report import FINISHED, record
from .throughput_log import check_log


async def reverify(config: Config, argv: Sequence[str], progress: Progress) -> int:
    """Verify what the input holds, into the output; returns the exit status."""
    command = _checked(config)
    async with (
        stored_file(command) as stored,
        reached_verifiers(config, command, stored.survey.agents(), progress.say) as found,
    ):
        return await _reverified(config, argv, stored, found, progress)


async def reverify_through(
    servers: Reached,
    names: Mapping[str, str | None],
    config: Config,
    argv: Sequence[str],
    progress: Progress,
) -> int:
    """The same through servers that are there already; `names`: agent → its resources server."""
    async with stored_file(_checked(config)) as stored:
        found = await verifiers(servers, names, stored.survey.agents())
        return await _reverified(config, argv, stored, found, progress)


def _checked(config: Config) -> ReverifyConfig:
    command = config.command
    assert isinstance(command, ReverifyConfig)
    if command.output_jsonl_fpath is None:
        raise ConfigError("output_jsonl_fpath is missing: add +output_jsonl_fpath=reverified.jsonl")
    check_log(command)
    return command


@asynccontextmanager
async def stored_file(command: ReverifyConfig) -> AsyncIterator[StoredFile]:
    """The input, surveyed; ConfigError when there is nothing in it to verify."""
    source = stored_path(command)
    survey = Survey(command.limit, only_of(command.only))
    with input_file(source) as path:
        stored = StoredFile(source, path, survey)
        check_apart(source, output_paths(command))
        if source != "-" and stored.collected.has(output_paths(command).main):
            raise ConfigError(
                f"{command.output_jsonl_fpath} belongs to the rollouts that are verified, and none"
                " of them may change: give another output_jsonl_fpath"
            )
        for read, line in enumerate(stored_lines(path), 1):
            if not survey.take(line):
                break
            if read % BREATH == 0:
                await asyncio.sleep(0)  # Ctrl-C and others get their turn
        if not survey.rows:
            raise ConfigError(_nothing(source, survey, command))
        yield stored


def _nothing(source: str, survey: Survey, command: ReverifyConfig) -> str:
    if command.only is not None:
        return f"only={command.only}: {source} has no such rollout"
    if survey.malformed:
        first = survey.malformed[0]
        return (
            f"{source}: there is no stored rollout in it; line {first.line}: {first.message}."
            " Give a file that ng_collect_rollouts wrote"
        )
    if survey.without_response:
        what = number_of(survey.without_response, "failure")
        return f"{source}: {what}, and none carries a response: there is nothing to verify"
    return f"{source}: there is no rollout in it"


async def _reverified(
    config: Config,
    argv: Sequence[str],
    stored: StoredFile,
    found: Verifiers,
    progress: Progress,
) -> int:
    if not found.plans:
        reasons = "\n".join(found.left_out.values())
        raise ConfigError(
            f"no rollout of {stored.source} can be verified; nothing was sent\n{reasons}"
        )
    run = renewal(config, argv, stored, found)
    verification = Verification.of(run, progress)
    try:
        if run.command.dry_run:
            return verification.shown()
        return await verification.verified()
    finally:
        run.journal.close(clean=verification.finished)


@dataclass(slots=True)
class Verification:
    """One run over what is stored."""

    run: Renewal
    progress: Progress
    counts: Counts
    report: RenewalReport
    runner: Runner
    give_up: GiveUp
    finished: bool = False

    @classmethod
    def of(cls, run: Renewal, progress: Progress) -> "Verification":
        command, plans = run.command, run.verifiers.plans
        counts = run.counts()
        limits = Limits(
            max_attempts=command.max_attempts,
            rollout_timeout_s=command.rollout_timeout_s,
            verify_timeout_s=command.verify_timeout_s,
        )
        resources = {plan.resources for plan in plans.values()}
        return cls(
            run,
            progress,
            counts,
            RenewalReport(run, progress, counts),
            Runner(run.verifiers.servers.peers, plans, limits),
            GiveUp(
                resources,
                command.num_samples_in_parallel,
                owed=counts.to_verify,
                succeeded=counts.done > 0,
            ),
        )

    def shown(self) -> int:
        """The plan and the first request, and nothing else."""
        self.report.say_plan()
        self.finished = True
        owed = (each for each in self._attempts() if each and not self.run.is_copied(each.key))
        attempt = next(owed, None)
        if attempt is None or attempt.stored is None:
            self.progress.say("Nothing is owed: no request would be sent.")
            return FINISHED
        line = without_verdict(attempt.stored)
        request = {**row_of(line), "response": line["response"]}
        text = orjson.dumps(request, option=orjson.OPT_INDENT_2).decode()
        where = self.run.verifiers.plans[attempt.key.agent].resources
        self.progress.say(f"First request (POST {where}/verify):\n{text}", request=request)
        return FINISHED

    async def verified(self) -> int:
        """Verify what is owed; the exit status."""
        run, progress = self.run, self.progress
        self.report.say_plan()
        if run.command.only is None:
            run.manifest.write()
        drive = Drive(
            self._attempts(),
            self._outcome,
            self.runner.bill,
            command=run.command,
            limiter=Fixed(run.command.num_samples_in_parallel),
            journal=run.journal,
            progress=progress,
            ends=run.verifiers.servers.ends,
            take=self._taken,
            write_metrics=partial(self.report.write_metrics, meanwhile=True),
        )
        self.report.meter = drive.meter
        progress.start(self.counts.planned - self.counts.left_out, self.counts.done)
        status = self.report.end(await drive.run())
        self.finished = True
        return status

    def _attempts(self) -> Iterator[Attempt | None]:
        """What is owed, in the input's order; each malformed line is named once."""
        stored = self.run.stored
        for read, line in enumerate(stored_lines(stored.path), 1):
            if read % BREATH == 0:
                yield None  # others get their turn
            if line.line > stored.survey.last_line:
                return
            match line:
                case Malformed():
                    self._name(line)
                case Line(number, key, content):
                    chosen = stored.survey.rows.get(key)
                    if chosen and chosen.line == number and self.run.is_owed(key):
                        task = Task(key.task_id, content["_ng_task_index"], number, key.agent, {})
                        yield Attempt(key, task, stored=content)

    def _name(self, malformed: Malformed) -> None:
        source = self.run.stored.source
        known = (source, malformed.line) in self.run.journal.contents.malformed
        if known or self.run.command.dry_run or self.run.command.only is not None:
            return
        self.run.journal.append_failure(malformed_line(malformed, source))

    async def _outcome(self, attempt: Attempt, slot: Slot) -> Outcome:
        if attempt.stored is not None and self.run.is_copied(attempt.key):
            return Rollout(attempt.key, attempt.stored)
        outcome = await self.runner(attempt, slot)
        if isinstance(outcome, Unverified) and outcome.error is not None:
            # the response is in the input: a verdict that did not come is a failure like others
            tried = outcome.line["failure"]
            return Failure(outcome.key, attempt.task.task_index, outcome.error, [tried])
        return outcome

    def _taken(self, outcome: Outcome) -> None:
        """Count an outcome that is on disk."""
        if isinstance(outcome, Rollout):
            self.run.metrics.add(outcome.line)
            self.run.comparison.add(self._old_reward(outcome.key), outcome.line)
            self.give_up.succeeded = True
        elif isinstance(outcome, Failure):
            self._record(outcome)

    def _old_reward(self, key: Key) -> float | None:
        return self.run.stored.survey.rows[key].reward

    def _record(self, failure: Failure) -> None:
        record(failure, self.run, self.report.reasons, self.give_up)
