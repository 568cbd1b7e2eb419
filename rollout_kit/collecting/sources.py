"""Tasks as a source of attempts: from a file, or from an iterable.

A source also knows its plan in numbers, and which of its rollouts are on disk.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..analysis.metrics.summary import Metrics
from ..analysis.metrics.tally import Tally
from ..config.keys import CollectConfig
from ..errors import ConfigError, number_of
from ..store.compact import Keys, NumberTable
from ..store.journal import AnyJournal
from ..store.lines import Malformed, arm_block, row_of
from ..store.own_tasks import Others, OwnTasks, read_task_numbers
from ..store.scope import is_named
from ..store.tasks import BREATH, NO_AGENT, TaskReader, agent_name_of
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Say, Task
from .schedule import LATER, Attempts, End, Later
from .wanted import Wanted


@dataclass(frozen=True, slots=True)
class Counts:
    """The plan of a run in numbers.

    `planned` = done + to_verify + to_copy + to_collect + refused + left_out.
    """

    tasks: int = 0
    """Distinct tasks of each agent."""
    repeated: int = 0
    """Rows that are identical to an earlier one: further repeats of its task."""
    planned: int = 0
    done: int = 0
    to_verify: int = 0
    to_copy: int = 0
    refused: int = 0
    """Permanent failures of earlier runs."""
    left_out: int = 0
    """Stored rollouts that no running server can verify."""
    malformed: int = 0
    without_response: int = 0
    """Stored failures that hold no response to verify."""
    older: int = 0
    """Stored verdicts of another verifier than the present one."""
    current: int = 0
    """Stored verdicts of the present verifier."""
    none: int = 0
    """Stored responses without a verdict."""
    renamed: int = 0
    """Tasks whose row names another agent than the one it runs with."""
    first_renamed: Task | None = None

    @property
    def to_collect(self) -> int:
        others = self.done + self.to_verify + self.to_copy + self.refused + self.left_out
        return self.planned - others

    def __add__(self, other: "Counts") -> "Counts":
        names = [name for name in Counts.__slots__ if name != "first_renamed"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Counts(**sums, first_renamed=self.first_renamed or other.first_renamed)

    def figures(self, *names: str) -> dict[str, int]:
        """Some of the numbers, for a program to read."""
        return {name: getattr(self, name) for name in names}


def find_owed(
    tasks: Iterable[Task | Malformed],
    wanted: Wanted,
    settled: Callable[[Key], bool],
    on_task: Callable[[Task, Sequence[Key]], None] | None = None,
) -> Iterator[Attempt | Later]:
    """Every key that is still to be collected, in input order, the repeats of a task together.

    `settled` tells whether a key is done, waits for its verdict or failed permanently; `on_task`
    receives each task with its keys. A Later now and then lets other work of the event loop go on.
    """
    for number, task in enumerate(tasks, 1):
        if number % BREATH == 0:
            yield LATER
        if isinstance(task, Malformed):
            continue
        if on_task is None:
            yield from wanted.attempts(task, settled)
        else:
            pairs = list(wanted.pairs(task))
            on_task(task, [key for _, key in pairs])
            yield from wanted.attempts(task, settled, pairs)


def count(
    tasks: Iterable[Task | Malformed],
    wanted: Wanted,
    *,
    done: Keys,
    pending: Container[Key],
    refused: Container[Key],
) -> tuple[Counts, set[Key]]:
    """A part of the input in numbers, and the keys whose response only needs a verdict."""
    num_rows = repeated = planned = num_done = num_refused = malformed = renamed = 0
    first_renamed: Task | None = None
    to_verify: set[Key] = set()
    is_all_owed = wanted.only is None and not (done or pending or refused)
    for task in tasks:
        if isinstance(task, Malformed):
            malformed += wanted.only is None
            continue
        keys = () if is_all_owed else wanted.keys(task)
        number = wanted.num_keys(task) if is_all_owed else len(keys)
        planned += number
        for key in keys:
            if key in done:
                num_done += 1
            elif key in refused:
                num_refused += 1
            elif key in pending:
                to_verify.add(key)
        if number:
            num_rows += 1
            repeated += task.first_rollout > 0 and wanted.only is None
            if agent_name_of(task.row) not in (None, task.agent):
                renamed += 1
                first_renamed = first_renamed or task
    counts = Counts(
        tasks=num_rows - repeated,
        repeated=repeated,
        planned=planned,
        done=num_done,
        to_verify=len(to_verify),
        refused=num_refused,
        malformed=malformed,
        renamed=renamed,
        first_renamed=first_renamed,
    )
    return counts, to_verify


COUNT_FIRST = 50_000
"""Inputs with more rows are counted while the first requests are under way."""

KEPT_BYTES = 8 << 20
"""The tasks of a smaller file are kept from counting to collecting, so that each is read once."""

MAX_NAMED = 5
"""Malformed lines that are printed; the failures file names all of them."""


OnTask = Callable[[Collection[Key], Task, Sequence[Key]], None]
"""Receives the keys that failed permanently before, a task, and all keys of the task."""


class TaskSource:
    """Stored responses that wait for their verdict first, then what the tasks still ask for."""

    on_task: OnTask | None = None
    """Follows each task before its first attempt."""
    own: OwnTasks | None = None
    """The tasks of the input, once they are known; None if the output holds no others."""
    others = Others(0, 0)
    generates = True
    """Whether its rollouts use tokens of the policy."""
    lacks = "result"
    """What a rollout that failed is without."""
    reads_as_asked = False
    """Whether its rest is read only as far as the run asks for it."""

    def __init__(
        self,
        command: CollectConfig,
        reader: TaskReader,
        wanted: Wanted,
        journal: AnyJournal,
        *,
        name: str,
        agents: Collection[str],
        say: Say,
    ) -> None:
        self.reader, self.wanted, self.name = reader, wanted, name
        self.input_path: Path | None = reader.path
        self._command, self.num_repeats = command, command.num_repeats
        self.counts = Counts()
        self.is_open_ended = False
        self.num_replayed_otherwise = 0
        """Rollouts whose replayed tools gave other answers."""
        self._contents, self._journal = journal.contents, journal
        self._agents, self._say = agents, say
        self._kept: deque[Task | Malformed] | None = None
        self._to_verify: set[Key] = set()
        self._num_unplanned = 0
        self._num_named = 0
        self._attempts = Attempts(self._all())

    def next(self) -> Attempt | Later | End:
        return self._attempts.next()

    def covers(self, agent: str, scope: str) -> bool:
        """Whether the rollouts of a scope belong to this run."""
        return self.wanted.covers(agent, scope)

    @property
    def arm_ids(self) -> list[str]:
        return self.wanted.arm_ids

    async def count(self) -> None:
        tasks, number = self.reader.read(), COUNT_FIRST
        self._kept = deque() if self._keeps_tasks() else None
        if self._kept is None:
            number //= 10  # they are read twice
            self.reader.leading.restore(self._journal.index, self.reader.mark())
        self.counts = await self._count(itertools.islice(tasks, number))
        if (one_more := next(tasks, None)) is not None:
            if self._command.strict_input or self._command.dry_run:
                self.counts += await self._count(itertools.chain([one_more], tasks))
            else:
                self.is_open_ended, self._kept = True, None
        self._check()

    async def count_rest(self) -> None:
        """Count a long input to its end, beside the run."""
        self._to_verify.clear()
        self.counts = await self._count(self.reader.read())
        self.is_open_ended = False
        self.reader.leading.keep(self._journal.index, self.reader.mark())

    async def know_tasks(self) -> None:
        """Learn which rollouts on disk are of this input's tasks, which a limit does not narrow."""
        contents = self._contents
        held = contents.done.numbers()
        num_waiting = sum(map(self.is_of_this_run, contents.pending))
        num_held = sum(number for which, number in held.items() if self.covers(*which))
        is_mixed = num_held > self.counts.done or num_waiting > len(self._to_verify)
        if is_mixed and self.wanted.only is None:
            self.own = OwnTasks(await self._task_numbers())
            self.others = self.own.count_others(contents.done, self.covers)

    async def _task_numbers(self) -> NumberTable:
        """The ids of all tasks of the input."""
        if not (self.reader.limit or self.is_open_ended):
            return self.reader.positions
        found = NumberTable()
        for row, number in enumerate(read_task_numbers(self.reader.path), 1):
            found.setdefault(number, 0)
            if row % BREATH == 0:
                await asyncio.sleep(0)
        return found

    def take(self, outcome: Outcome) -> None:
        pending = self._contents.pending
        if pending and isinstance(outcome, Rollout) and outcome.key in pending:
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
        return max(map(self.wanted.per_task, self._agents), default=0)

    def is_of_this_run(self, key: Key) -> bool:
        return self.wanted.covers(key.agent, key.scope)

    def input_entry(self) -> JsonObject | None:
        """This run's input, as the manifest remembers it."""
        return {
            "path": self.name,
            "limit": self.reader.limit or None,
            "agent_name": self.reader.agent_name,
            "num_repeats": self.num_repeats,
            "tasks": self.counts.tasks,
            "planned": self.counts.planned,
            **({"shard": shard.spell()} if (shard := self._command.shard) else {}),
        }

    def own_results(self) -> JsonObject:
        """What this source adds to the metrics file."""
        return {}

    def num_missing(self, tally: Tally) -> int:
        """Planned rollouts that are not on disk."""
        return max(0, self.counts.planned - self._num_on_disk(tally))

    def metric_counts(self, metrics: Metrics, tally: Tally, num_parked: int) -> JsonObject:
        beyond = max(0, metrics.rollouts - self._num_on_disk(tally))
        return {
            "tasks": max(self.counts.tasks, metrics.tasks),
            "planned": self.counts.planned + beyond,
            "unverified": num_parked,
            "failed": tally.failed + self.counts.refused,
            "malformed": self.counts.malformed,
        }

    def plan_figures(self) -> JsonObject:
        names = ("tasks", "repeated", "planned", "done", "to_verify", "to_collect", "refused")
        return self.counts.figures(*names, "malformed")

    def plan_line(self) -> str:
        counts, repeats = self.counts, self.wanted.common_repeats() or 0
        num_arms = len(self.arm_ids) or 1
        is_even = bool(counts.tasks) and counts.planned == counts.tasks * num_arms * repeats
        times = f" × {number_of(num_arms, 'arm')}" if self.arm_ids else ""
        if is_even and not (self.arm_ids and repeats == 1):
            times += f" × {number_of(repeats, 'repeat')}"
        times += " = " if is_even else ": "
        wanted = f"{number_of(counts.tasks, 'task')}{times}{number_of(counts.planned, 'rollout')}"
        parts = [f"Plan: {wanted}", f"{counts.done:,} done"]
        parts += [f"{counts.to_verify:,} to verify only", f"{counts.to_collect:,} to collect"]
        parts += [f"{counts.refused:,} failed permanently"] * bool(counts.refused)
        parts += [number_of(counts.repeated, "repeated row")] * bool(counts.repeated)
        parts += [number_of(counts.malformed, "malformed line")] * bool(counts.malformed)
        parts += [f"{self._command.shard} of the input"] * bool(self._command.shard)
        return " · ".join(parts)

    def plan_notes(self) -> Iterator[tuple[str, JsonObject]]:
        """The plan in one line, and what people should know about it: text, and its fields."""
        # an endless plan is counted too: its epochs to the one under way
        if self.is_open_ended and self.wanted.num_epochs is not None:
            yield f"{self.plan_line()} among the first {COUNT_FIRST:,} rows; counting on", {}
            return
        yield self.plan_line(), {"event": "plan", **self.plan_figures()}
        if (first := self.counts.first_renamed) is None:
            return
        number, name = self.counts.renamed, "name" if self.counts.renamed > 1 else "names"
        yield (
            f"warning: the agent_ref of {number_of(number, 'row')} {name}"
            f" another agent ({self.name}:{first.line}: '{agent_name_of(first.row)}'), and all run"
            f" with '{first.agent}', as "
            + ("agent_name says" if self._command.agent_name else "there is no other"),
            {"event": "renamed", "rows": number, "line": first.line, "agent": first.agent},
        )

    def find_missing_of(self, entry: JsonObject) -> tuple[int, bool]:
        """The number of tasks of an earlier input that neither the output nor this input has, and
        whether this input is a part of it."""
        reader, done = self.reader.of_input(entry["path"], entry.get("limit")), self._contents.done
        lacking: set[str] = set()
        with suppress(ConfigError):  # an input that was removed cannot be collected anyway
            lacking = {
                task.task_id
                for task in reader.read()
                if isinstance(task, Task) and any(key not in done for key in self.wanted.keys(task))
            }
        mine, is_part = self.reader.read() if lacking else iter(()), False
        while lacking and (task := next(mine, None)) is not None:
            if isinstance(task, Task):
                lacking.discard(task.task_id)
                is_part = is_part or int(task.task_id, 16) in reader.positions
        return len(lacking), is_part

    def closing_lines(self) -> list[str]:
        """What people should know at the end."""
        if not (number := self.num_replayed_otherwise):
            return []
        what = number_of(number, "replayed rollout")
        return [f"Replays: the tools of {what} gave other answers than when they were collected"]

    def find_owed(self, tasks: Iterable[Task | Malformed]) -> Iterator[Attempt | Later]:
        """What is to be collected of these tasks."""
        done, pending, refused = self._contents.done, self._contents.pending, self._refused_keys()

        def is_settled(key: Key) -> bool:
            return key in done or key in pending or key in refused

        on_task = self.on_task and partial(self.on_task, refused)
        settled = is_settled if done or pending or refused else lambda key: False
        owed = find_owed(tasks, self.wanted, settled, on_task)
        return map(self._with_turns, owed) if self._journal.num_unfinished else owed

    def _with_turns(self, attempt: Attempt | Later) -> Attempt | Later:
        """The attempt with the turns that an earlier run stored of its rollout."""
        if isinstance(attempt, Later) or not (turns := self._journal.find_turns(attempt.key)):
            return attempt
        return attempt._replace(turns=turns)

    def _num_on_disk(self, tally: Tally) -> int:
        """Rollouts of this plan that are on disk."""
        return self.counts.done + tally.rollouts - self._num_unplanned

    def _refused_keys(self) -> Collection[Key]:
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
        done, pending, refused = self._contents.done, self._contents.pending, self._refused_keys()
        found, to_verify = count(tasks, self.wanted, done=done, pending=pending, refused=refused)
        self._to_verify |= to_verify
        return found

    def _check(self) -> None:
        """ConfigError if the input cannot be collected as it is."""
        counts, only = self.counts, self.wanted.only
        if self._command.strict_input and counts.malformed:
            bad = next(each for each in self.reader.read() if isinstance(each, Malformed))
            raise ConfigError(
                f"{self.name}:{bad.line}: {bad.message} ({counts.malformed} malformed lines in all;"
                " +strict_input=false collects the others)"
            )
        if counts.malformed and not counts.planned:
            self._check_that_rows_fit()
        if self.is_open_ended or counts.planned:
            return
        if only:
            asked = f"{only[0]}:{only[1]}"
            raise ConfigError(f"only={asked}: {self.name} has no such rollout within this limit")
        if not counts.malformed and self._command.shard is None:
            raise ConfigError(f"{self.name}: there is no task in it")

    def _check_that_rows_fit(self) -> None:
        """One error for the command, instead of one for each row."""
        if not isinstance(first := next(self.reader.read(), None), Malformed):
            return
        if first.message == NO_AGENT:
            found = self.reader.agents
            how = f"add +agent_name=… with one of {', '.join(sorted(found))}"
            how = f"there are {len(found)}: {how}" if found else "none is configured"
            raise ConfigError(f"{self.name}: the rows name no agent (agent_ref), and {how}")
        if first.message.startswith("arm '"):
            raise ConfigError(f"{self.name}:{first.line}: {first.message}; no row fits the arms")

    def _all(self) -> Iterator[Attempt | Later]:
        contents, only = self._contents, self.wanted.only
        for key in contents.pending:
            if not (self.is_of_this_run(key) and key.agent in self._agents):
                continue
            if is_named(key, only) and (only or key not in contents.refused):
                yield self._attempt_parked(key)
        yield from self.find_owed(self._name_malformed(self._tasks()))

    def _attempt_parked(self, key: Key) -> Attempt:
        line = self._journal.pending_line(key)
        task = Task(key.task_id, line["_ng_task_index"], 0, key.agent, row_of(line))
        return Attempt(key, task, stored=line, arm=arm_block(line))

    def _tasks(self) -> Iterator[Task | Malformed]:
        """The tasks kept from counting, each released once it is used; or the file again, without
        the rows that are known to be done."""
        if self._kept is None:
            leading = self.reader.leading
            if leading.known and self.on_task is None and self.wanted.only is None:
                wanted = self.wanted.keys(Task("", 0, 0, str(self.reader.agent_name), {}))
                owed = leading.find_owed(self._contents.done, wanted)
                yield from self.reader.read_owed(owed)
            else:
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
        if self._command.dry_run:
            return (self.name, malformed.line) not in self._contents.malformed
        return self._journal.append_malformed(malformed, self.name)
