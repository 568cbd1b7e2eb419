"""Which rollouts are owed, and the attempts that are made of them: tasks as a source of attempts.

`Wanted` says which rollouts of each task a run asks for; `find_owed` leaves out what is settled.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

from ..analysis.metrics.tally import Tally
from ..config.keys import CollectConfig, SamplingConfig
from ..errors import ConfigError
from ..store.arms.arm import Arm, order_by_prompt
from ..store.compact import NumberTable
from ..store.journal import AnyJournal
from ..store.lines import Malformed, arm_block, row_of
from ..store.scope import is_named, parse_scope
from ..store.tasks import BREATH, NO_AGENT, OwnTasks, TaskReader, read_task_numbers
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Say, Task
from .counts import Counts, RunSource, count
from .schedule import LATER, Attempts, End, Later

Scopes = Mapping[tuple[str, str], str]
"""(agent, id of the arm, or empty) → scope, where it is not the scope of the arm alone."""


@dataclass(frozen=True)
class Wanted:
    """Attempts at a task go through its arms, those with equal prompts beside each other."""

    repeats: Callable[[str], int]
    scopes: Scopes = field(default_factory=dict)
    add_seed: bool = False
    only: tuple[str, int] | None = None
    """(task_id, rollout_index): only this rollout, even if it failed permanently before."""
    arms: Sequence[Arm] = ()
    epoch: int = 0
    """Which time the tasks are gone through; the first has no mark in the scope."""
    num_epochs: int | None = 1
    """None: for ever."""

    @cached_property
    def ordered(self) -> Sequence[Arm | None]:
        """The arms in the order of their requests; one None if there are no arms."""
        return order_by_prompt(self.arms) or [None]

    @cached_property
    def arm_ids(self) -> list[str]:
        """The arms in the order of the configuration."""
        return [arm.id for arm in self.arms]

    def at(self, epoch: int) -> "Wanted":
        """What is wanted of one epoch."""
        return replace(self, epoch=epoch)

    def scope_of(self, agent: str, arm: str = "") -> str:
        scope = self._scope_without_epoch(agent, arm)
        return parse_scope(scope)._replace(epoch=self.epoch).text if self.epoch else scope

    def covers(self, agent: str, scope: str) -> bool:
        """Whether rollouts of this scope belong to the run."""
        if self.num_epochs != 1 and (epoch := parse_scope(scope).epoch):
            if self.num_epochs is not None and epoch >= self.num_epochs:
                return False
            scope = parse_scope(scope)._replace(epoch=None).text
        arm = parse_scope(scope).arm if self.arms else ""
        is_asked = not self.arms or arm in self.arm_ids
        return is_asked and scope == self._scope_without_epoch(agent, arm)

    def _scope_without_epoch(self, agent: str, arm: str) -> str:
        return self.scopes.get((agent, arm), f"arm={arm}" if arm else "")

    def per_task(self, agent: str) -> int:
        """Rollouts of each task."""
        return sum(self._repeats_of(arm, agent) for arm in self.ordered)

    def common_repeats(self, agents: Iterable[str]) -> int | None:
        """How many rollouts a task has in each arm; None if the arms or the agents differ in it."""
        found = {number for agent in agents for _, _, number in self._of_agent(agent)}
        return found.pop() if len(found) == 1 else None

    def keys(self, task: Task) -> list[Key]:
        """The keys of a task, the repeats of an arm in order."""
        return [key for _, key in self.pairs(task)]

    def num_keys(self, task: Task) -> int:
        """How many they are, whatever `only` says."""
        return sum(number for _, _, number in self._of_agent(task.agent))

    def attempts(
        self,
        task: Task,
        settled: Callable[[Key], bool],
        pairs: Iterable[tuple[Arm | None, Key]],
    ) -> Iterator[Attempt]:
        """Attempts at those of a task's `pairs` that are not settled."""
        for arm, key in pairs:
            if settled(key):
                continue
            asked = task
            if self.add_seed:
                before = self.epoch * self._repeats_of(arm, task.agent)
                asked = with_seed(task, before + key.rollout_index)
            yield arm.attempt(key, asked) if arm else Attempt(key, asked)

    def pairs(self, task: Task) -> Iterator[tuple[Arm | None, Key]]:
        """The keys of a task, each with its arm."""
        task_id, agent, only = task.task_id, task.agent, self.only
        for arm, scope, number in self._of_agent(agent):
            first = task.first_rollout * number if self.arms else task.first_rollout
            for index in range(first, first + number):
                key = Key(task_id, agent, scope, index)
                if only is None or is_named(key, only):
                    yield arm, key

    @cached_property
    def _of_agent(self) -> Callable[[str], Sequence[tuple[Arm | None, str, int]]]:
        """Each arm, its scope, and how many rollouts a task of an agent has in it.

        It is computed once for each agent: an input has millions of tasks.
        """

        @cache
        def of(agent: str) -> Sequence[tuple[Arm | None, str, int]]:
            return [
                (arm, self.scope_of(agent, arm.id if arm else ""), self._repeats_of(arm, agent))
                for arm in self.ordered
            ]

        return of

    def _repeats_of(self, arm: Arm | None, agent: str) -> int:
        return arm.repeats if arm and arm.repeats is not None else self.repeats(agent)


def with_seed(task: Task, seed: int) -> Task:
    """The task with a `seed`, unless its row has one."""
    params = {"seed": seed, **task.row["responses_create_params"]}
    return task._replace(row={**task.row, "responses_create_params": params})


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
        pairs = list(wanted.pairs(task))
        if on_task:
            on_task(task, [key for _, key in pairs])
        yield from wanted.attempts(task, settled, pairs)


COUNT_FIRST = 50_000
"""Inputs with more rows are counted once the first requests are sent, so that these go sooner."""

KEPT_BYTES = 8 << 20
"""The tasks of a smaller file are kept from counting to collecting, so that each is read once."""

MAX_NAMED = 5
"""Malformed lines that are printed; the failures file names all of them."""


class TaskSource(RunSource):
    """Stored responses that wait for their verdict first, then what the tasks still ask for."""

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
        self.input_path, self.arm_ids = reader.path, wanted.arm_ids
        self._command, self.num_repeats, self.shard = command, command.num_repeats, command.shard
        self.counts = Counts()
        self.is_open_ended = False
        self.num_replayed_otherwise = 0
        """Rollouts whose replayed tools gave other answers."""
        self._contents, self._journal, self.done = journal.contents, journal, journal.contents.done
        self.agents, self._say = agents, say
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

    @property
    def num_owed(self) -> int:
        """Rollouts that this run may send to the policy."""
        return self.counts.to_collect

    @property
    def repeats(self) -> int:
        """Rollouts that each task is meant to have."""
        return max(map(self.wanted.per_task, self.agents), default=0)

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

    def num_on_disk(self, tally: Tally) -> int:
        return super().num_on_disk(tally) - self._num_unplanned

    def find_owed(
        self, tasks: Iterable[Task | Malformed], wanted: Wanted | None = None
    ) -> Iterator[Attempt | Later]:
        """What is to be collected of these tasks, by default of the epoch under way."""
        done, pending, refused = self._contents.done, self._contents.pending, self._refused_keys()

        def is_settled(key: Key) -> bool:
            return key in done or key in pending or key in refused

        on_task = self.on_task and partial(self.on_task, refused)
        settled = is_settled if done or pending or refused else lambda key: False
        owed = find_owed(tasks, wanted or self.wanted, settled, on_task)
        return map(self._with_turns, owed) if self._journal.num_unfinished else owed

    def _with_turns(self, attempt: Attempt | Later) -> Attempt | Later:
        """The attempt with the turns that an earlier run stored of its rollout."""
        if isinstance(attempt, Later) or not (turns := self._journal.find_turns(attempt.key)):
            return attempt
        return attempt._replace(turns=turns)

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
        yield from self.find_parked(self._contents.pending)
        yield from self.find_owed(self._name_malformed(self._tasks()))

    def find_parked(self, keys: Iterable[Key]) -> Iterator[Attempt]:
        """Those of this run among `keys` whose response is on disk and waits for its verdict."""
        contents, only = self._contents, self.wanted.only
        for key in keys:
            is_own = self.is_of_this_run(key) and key.agent in self.agents and is_named(key, only)
            if key in contents.pending and is_own and (only or key not in contents.refused):
                line = self._journal.pending_line(key)
                task = Task(key.task_id, line["_ng_task_index"], 0, key.agent, row_of(line))
                yield Attempt(key, task, stored=line, arm=arm_block(line))

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


def repeats_of(asked: int | dict[str, int]) -> Callable[[str], int]:
    """Agent → rollouts of each task, as the key `num_repeats` says."""
    if isinstance(asked, int):
        return lambda agent: asked

    def repeats(agent: str) -> int:
        found = asked.get(agent, asked.get("_default"))
        if found is None:
            raise ConfigError(f"num_repeats: has neither '{agent}' nor '_default'")
        return found

    return repeats


def check_repeats(command: SamplingConfig) -> None:
    """ConfigError if a task is to have no rollout."""
    asked = command.num_repeats
    for number in asked.values() if isinstance(asked, dict) else [asked]:
        if number < 1:
            raise ConfigError(f"num_repeats: must be at least 1, got {number}")
