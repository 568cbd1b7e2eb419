"""Tasks as a source of attempts: from a file, or from an iterable.

A source also knows its plan in numbers, and which of its rollouts are on disk.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
)
from contextlib import suppress
from typing import Any

from ..config.keys.commands import CollectConfig
from ..errors import ConfigError
from ..metrics.aggregate import Metrics
from ..metrics.tally import Tally
from ..store.journal import Journal, NoJournal
from ..store.lines import row_of
from ..store.tasks import NO_AGENT, Malformed, Reading, TaskReader
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Say, Task
from .plan import BREATH, Counts, Wanted, count, number_of, owed
from .schedule import END, Attempts, End, Later

COUNT_FIRST = 50_000
"""Inputs with more rows are counted while the first requests are under way."""

KEPT_BYTES = 8 << 20
"""The tasks of a smaller file are kept from counting to collecting, so that each is read once."""

UNKNOWN = 1 << 30
"""Number of rollouts of a stream, which is not known before its end."""

MAX_NAMED = 5
"""Malformed lines that are printed; the failures file names all of them."""


class TaskSource:
    """Stored responses that wait for their verdict first, then what the tasks still ask for."""

    generates = True
    """Whether its rollouts use tokens of the policy."""

    def __init__(
        self,
        command: CollectConfig,
        reader: TaskReader,
        wanted: Wanted,
        journal: Journal | NoJournal,
        *,
        name: str,
        agents: Collection[str],
        say: Say,
    ) -> None:
        self.reader, self.wanted, self.name = reader, wanted, name
        self.num_repeats = command.num_repeats
        self.counts = Counts()
        self.is_open_ended = False
        self.num_replayed_otherwise = 0
        """Rollouts whose replayed tools gave other answers."""
        self._contents, self._journal = journal.contents, journal
        self._agents, self._say = agents, say
        self._is_strict, self._is_dry = command.strict_input, command.dry_run
        self._kept: deque[Task | Malformed] | None = None
        self._to_verify: set[Key] = set()
        self._num_unplanned = 0
        self._num_named = 0
        self._attempts = Attempts(self._all())

    def next(self) -> Attempt | Later | End:
        return self._attempts.next()

    def scope_of(self, agent: str) -> str:
        return self.wanted.scope_of(agent)

    async def count(self) -> None:
        tasks = self.reader.read()
        self._kept = deque() if self._keeps_tasks() else None
        self.counts = await self._count(itertools.islice(tasks, COUNT_FIRST))
        if (one_more := next(tasks, None)) is not None:
            if self._is_strict or self._is_dry:
                self.counts += await self._count(itertools.chain([one_more], tasks))
            else:
                self.is_open_ended, self._kept = True, None
        self._check()

    async def count_rest(self) -> None:
        """Count a long input to its end, beside the run."""
        self._to_verify.clear()
        self.counts = await self._count(self.reader.read())
        self.is_open_ended = False

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Rollout) and outcome.key in self._contents.pending:
            self._num_unplanned += outcome.key not in self._to_verify
            self.num_replayed_otherwise += outcome.info.replay_differences > 0

    def add_earlier(self, rollout: Rollout) -> None:
        """Follow a rollout of an earlier run."""

    def verifiers(self) -> Collection[str | None]:
        """Servers whose refusals end the run, beside the models."""
        return ()

    @property
    def num_owed(self) -> int:
        """Rollouts that this run may send to the policy."""
        return self.counts.to_collect

    @property
    def repeats(self) -> int:
        """Rollouts that each task is meant to have."""
        asked = self.num_repeats
        return asked if isinstance(asked, int) else max(asked.values())

    def is_of_this_run(self, key: Key) -> bool:
        return self.wanted.is_of_this_run(key)

    def input_entry(self) -> JsonObject | None:
        """This run's input, as the manifest remembers it."""
        return {
            "path": self.name,
            "limit": self.reader.limit or None,
            "agent_name": self.reader.agent_name,
            "num_repeats": self.num_repeats,
            "tasks": self.counts.tasks,
            "planned": self.counts.planned,
        }

    def own_results(self) -> JsonObject:
        """What this source adds to the metrics file."""
        return {}

    def num_missing(self, tally: Tally) -> int:
        """Planned rollouts that are not on disk."""
        return max(0, self.counts.planned - self._num_on_disk(tally))

    def metric_counts(self, metrics: Metrics, tally: Tally, num_parked: int) -> JsonObject:
        beyond = max(0, metrics.rollouts(self.scope_of) - self._num_on_disk(tally))
        return {
            "tasks": max(self.counts.tasks, metrics.tasks(self.scope_of)),
            "planned": self.counts.planned + beyond,
            "unverified": num_parked,
            "failed": tally.failed + self.counts.refused,
            "malformed": self.counts.malformed,
        }

    def plan_figures(self) -> JsonObject:
        names = ("tasks", "planned", "done", "to_verify", "to_collect", "refused", "malformed")
        return self.counts.figures(*names)

    def plan_line(self) -> str:
        counts = self.counts
        repeats, uneven = divmod(counts.planned, counts.tasks) if counts.tasks else (0, 1)
        times = ": " if uneven else f" × {number_of(repeats, 'repeat')} = "
        wanted = f"{number_of(counts.tasks, 'task')}{times}{number_of(counts.planned, 'rollout')}"
        parts = [f"Plan: {wanted}", f"{counts.done:,} done"]
        parts += [f"{counts.to_verify:,} to verify only", f"{counts.to_collect:,} to collect"]
        if counts.refused:
            parts.append(f"{counts.refused:,} failed permanently")
        if counts.malformed:
            parts.append(number_of(counts.malformed, "malformed line"))
        return " · ".join(parts)

    def owed(self, tasks: Iterable[Task | Malformed]) -> Iterator[Attempt | Later]:
        """What is to be collected of these tasks."""
        contents, refused = self._contents, self._refused()

        def is_settled(key: Key) -> bool:
            return key in contents.done or key in contents.pending or key in refused

        return owed(tasks, self.wanted, is_settled)

    def _num_on_disk(self, tally: Tally) -> int:
        """Rollouts of this plan that are on disk."""
        return self.counts.done + tally.rollouts - self._num_unplanned

    def _refused(self) -> Collection[Key]:
        return self._contents.refused if self.wanted.only is None else ()

    def _keeps_tasks(self) -> bool:
        path = self.reader.path
        with suppress(OSError):
            return path.suffix not in (".gz", ".zst") and path.stat().st_size <= KEPT_BYTES
        return False

    async def _count(self, tasks: Iterator[Task | Malformed]) -> Counts:
        """Count in stretches, so that signals and replies are handled in between."""
        counts = Counts()
        while stretch := list(itertools.islice(tasks, BREATH)):
            if self._kept is not None:
                self._kept.extend(stretch)
            counts += self._count_some(stretch)
            await asyncio.sleep(0)
        return counts

    def _count_some(self, tasks: Iterable[Task | Malformed]) -> Counts:
        contents = self._contents
        found, to_verify = count(
            tasks,
            self.wanted,
            done=contents.done.__contains__,
            pending=contents.pending.keys(),
            refused=self._refused(),
        )
        self._to_verify |= to_verify
        return found

    def _check(self) -> None:
        """ConfigError if the input cannot be collected as it is."""
        counts, only = self.counts, self.wanted.only
        if self._is_strict and counts.malformed:
            bad = next(each for each in self.reader.read() if isinstance(each, Malformed))
            raise ConfigError(
                f"{self.name}:{bad.line}: {bad.message} ({counts.malformed} malformed lines in all;"
                " +strict_input=false collects the others)"
            )
        if counts.malformed and not counts.planned:
            self._check_that_rows_have_an_agent()
        if self.is_open_ended or counts.planned:
            return
        if only:
            asked = f"{only[0]}:{only[1]}"
            raise ConfigError(f"only={asked}: {self.name} has no such rollout within this limit")
        if not counts.malformed:
            raise ConfigError(f"{self.name}: there is no task in it")

    def _check_that_rows_have_an_agent(self) -> None:
        """One error for the command, instead of one for each row."""
        first = next(self.reader.read(), None)
        if isinstance(first, Malformed) and first.message == NO_AGENT:
            raise ConfigError(
                f"{self.name}: the rows do not say which agent runs them (agent_ref), and there are"
                f" {len(self.reader.agents)}: add +agent_name=… with one of"
                f" {', '.join(sorted(self.reader.agents))}"
            )

    def _all(self) -> Iterator[Attempt | Later]:
        contents, only = self._contents, self.wanted.only
        for key in contents.pending:
            if not (self.wanted.is_of_this_run(key) and key.agent in self._agents):
                continue
            if (only is None and key not in contents.refused) or (
                key.task_id,
                key.rollout_index,
            ) == only:
                yield self._parked_attempt(key)
        yield from self.owed(self._name_malformed(self._tasks()))

    def _parked_attempt(self, key: Key) -> Attempt:
        line = self._journal.pending_line(key)
        task = Task(key.task_id, line["_ng_task_index"], 0, key.agent, row_of(line))
        return Attempt(key, task, stored=line)

    def _tasks(self) -> Iterator[Task | Malformed]:
        """The tasks kept from counting, each released once it is used; or the file again."""
        if self._kept is None:
            yield from self.reader.read()
            return
        while self._kept:
            yield self._kept.popleft()

    def _name_malformed(self, tasks: Iterable[Task | Malformed]) -> Iterator[Task | Malformed]:
        """The tasks; each malformed line is written to the failures file once."""
        for task in tasks:
            if isinstance(task, Malformed) and self._is_new(task):
                self._num_named += 1
                if self._num_named <= MAX_NAMED:
                    self._say(f"{self.name}:{task.line}: {task.message}")
                elif self._num_named == MAX_NAMED + 1:
                    self._say("… the failures file names further malformed lines")
            yield task

    def _is_new(self, malformed: Malformed) -> bool:
        if self._is_dry:
            return (self.name, malformed.line) not in self._contents.malformed
        return self._journal.append_malformed(malformed, self.name)


class StreamSource(TaskSource):
    """The tasks of an iterable, synchronous or not. The plan is known only at its end."""

    def __init__(
        self, rows: Iterable[JsonObject] | AsyncIterable[JsonObject], *given: Any, **named: Any
    ) -> None:
        super().__init__(*given, **named)
        self.is_open_ended = True
        self._rows = rows
        self._reading = Reading(self.reader)
        self._waiting: deque[JsonObject] = deque()
        self._owed: deque[Attempt | Later] = deque()
        self._has_row, self._wants_row = asyncio.Event(), asyncio.Event()
        self._num_rows = 0
        self._error: Exception | None = None

    @property
    def num_owed(self) -> int:
        return UNKNOWN

    async def count(self) -> None:
        return

    async def count_rest(self) -> None:
        """Read the iterable while the run goes on, one row ahead of it."""
        try:
            async for row in _each(self._rows):
                if self.reader.limit and self._num_rows >= self.reader.limit:
                    break
                self._waiting.append(row)
                self._has_row.set()
                self._wants_row.clear()
                await self._wants_row.wait()
        except Exception as error:  # it rises where the run asks for the next task
            self._error = error
        self.is_open_ended = False
        self._has_row.set()

    def next(self) -> Attempt | Later | End:
        while not self._owed:
            self._wants_row.set()
            if self._waiting:
                self._num_rows += 1
                task = self._reading.task(self._num_rows, self._waiting.popleft())
                self.counts += self._count_some([task])
                self._owed.extend(self.owed(self._name_malformed([task])))
            elif self._error is not None:
                raise self._error
            elif not self.is_open_ended:
                return END
            else:
                self._has_row.clear()
                return Later(self._has_row)
        return self._owed.popleft()


async def _each(
    rows: Iterable[JsonObject] | AsyncIterable[JsonObject],
) -> AsyncIterator[JsonObject]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row
