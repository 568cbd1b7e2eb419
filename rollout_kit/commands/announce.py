"""The plan as it is told before the first request: wanted, done, owed, and still missing."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from ..collector.plan import BREATH, Counts, count, number_of
from ..collector.prepare import Prepared
from ..errors import ConfigError
from ..store.tasks import NO_AGENT, Malformed, agent_named
from ..types import JsonObject, Task
from .progress import Progress

COUNT_FIRST = 50_000
"""Rows up to which the whole plan is counted before the first request; longer inputs overlap."""


@dataclass(slots=True)
class Announcement:
    """Counts the plan and prints it. `open_ended`: the input is so long that counting goes on."""

    run: Prepared
    progress: Progress
    counts: Counts = field(default_factory=Counts)
    open_ended: bool = False

    async def begin(self) -> None:
        """Count what can be counted at once; ConfigError where there is nothing to run."""
        run = self.run
        for note in run.notes:
            self.progress.say(note)
        tasks = run.reader.read()
        self.counts = await self._counted(itertools.islice(tasks, COUNT_FIRST))
        if (one_more := next(tasks, None)) is not None:
            if run.command.strict_input or run.command.dry_run:
                self.counts += await self._counted(itertools.chain([one_more], tasks))
            else:
                self.open_ended = True
        if run.command.strict_input and self.counts.malformed:
            bad = next(task for task in run.reader.read() if isinstance(task, Malformed))
            raise ConfigError(
                f"{run.source}:{bad.line}: {bad.message} ({self.counts.malformed} malformed lines"
                " in all; +strict_input=false collects the others)"
            )
        if self.counts.malformed and not self.counts.planned:
            self._check_that_rows_have_an_agent()
        if self.open_ended:
            first = f"among the first {COUNT_FIRST:,} rows; counting on"
            self.progress.say(f"{self.counts.line()} {first}")
            return
        if not self.counts.planned and run.wanted.only:
            raise ConfigError(
                f"only={run.command.only}: {run.source} has no such rollout within this limit"
            )
        if not self.counts.planned and not self.counts.malformed:
            raise ConfigError(f"{run.source}: there is no task in it")
        self._say_plan()
        self._say_who_is_renamed()
        self._say_what_earlier_inputs_miss()

    async def complete(self) -> None:
        """Count a long input to its end, beside the run."""
        self.counts = await self._counted(self.run.reader.read())
        self.open_ended = False
        self.progress.set_total(self.counts.planned)
        self._say_plan()
        self._say_who_is_renamed()

    async def _counted(self, tasks: Iterator[Task | Malformed]) -> Counts:
        """Count a stretch at a time, so that signals and replies get their turn."""
        contents = self.run.journal.contents
        counts = Counts()
        while stretch := list(itertools.islice(tasks, BREATH)):
            counts += count(
                stretch,
                self.run.wanted,
                done=contents.done.__contains__,
                pending=contents.pending.keys(),
                refused=contents.refused if self.run.wanted.only is None else (),
            )
            await asyncio.sleep(0)
        return counts

    def _say_plan(self) -> None:
        self.progress.say(self.counts.line(), event="plan", **self.counts.figures())

    def _check_that_rows_have_an_agent(self) -> None:
        """That no row says who runs it is the command's mistake, and not each row's."""
        reader = self.run.reader
        of_first = next(reader.read(), None)
        if isinstance(of_first, Malformed) and of_first.message == NO_AGENT:
            raise ConfigError(
                f"{self.run.source}: the rows do not say which agent runs them (agent_ref), and"
                f" there are {len(reader.agents)}: add +agent_name=… with one of"
                f" {', '.join(sorted(reader.agents))}"
            )

    def _say_who_is_renamed(self) -> None:
        """Rows whose own word on their agent does not count, as one agent runs them all."""
        number, first = self.counts.renamed, self.counts.first_renamed
        if first is None:
            return
        name = "name" if number > 1 else "names"
        self.progress.say(
            f"warning: the agent_ref of {number_of(number, 'row')} {name} another agent"
            f" ({self.run.source}:{first.line}: '{agent_named(first.row)}'), and all run with"
            f" '{first.agent}', as "
            + ("agent_name says" if self.run.command.agent_name else "there is no other"),
            event="renamed",
            rows=number,
            line=first.line,
            agent=first.agent,
        )

    def _say_what_earlier_inputs_miss(self) -> None:
        """Tasks that earlier runs into this output wanted, and that neither it nor this run has."""
        run = self.run
        contents = run.journal.contents
        earlier = run.manifest.earlier_inputs(self.input_entry())
        if not earlier:
            return
        mine = {task.task_id for task in run.reader.read() if isinstance(task, Task)}
        for entry in earlier:
            reader = run.reader.of_input(entry["path"], entry.get("limit"))
            with suppress(ConfigError):  # an input that is gone cannot be collected anyway
                missing = {
                    task.task_id
                    for task in reader.read()
                    if isinstance(task, Task)
                    and task.task_id not in mine
                    and any(key not in contents.done for key in run.wanted.keys(task))
                }
                if missing:
                    self.progress.say(
                        f"{len(missing):,} tasks of the earlier input {entry['path']} (limit"
                        f" {entry.get('limit') or 'none'}) are still missing; the same command with"
                        " that input collects them"
                    )

    def input_entry(self) -> JsonObject:
        """This run's input, as the manifest remembers it."""
        run = self.run
        return {
            "path": run.source,
            "limit": run.command.limit or None,
            "agent_name": run.reader.agent_name,
            "num_repeats": run.command.num_repeats,
            "tasks": self.counts.tasks,
            "planned": self.counts.planned,
        }
