"""Which rollouts are wanted, done, to be verified only, and owed. Pure: decides, and touches
nothing."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..store.tasks import Malformed, agent_named
from ..types import Attempt, Key, Task

BREATH = 1_000
"""Rows that are read at a stretch: some 20 ms in which nothing else of the process happens."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What this run asks for of each task."""

    repeats: Callable[[str], int]
    scopes: Mapping[str, str] = field(default_factory=dict)
    """Agent → scope, where it is not the plain one."""
    add_seed: bool = False
    only: tuple[str, int] | None = None
    """(task_id, rollout_index): just this one, whatever has become of it before."""

    def scope_of(self, agent: str) -> str:
        return self.scopes.get(agent, "")

    def is_of_this_run(self, key: Key) -> bool:
        return key.scope == self.scope_of(key.agent)

    def keys(self, task: Task) -> list[Key]:
        """A task's keys, its repeats together."""
        task_id, agent, first = task.task_id, task.agent, task.first_rollout
        scope, indices = self.scope_of(agent), range(first, first + self.repeats(agent))
        return [
            Key(task_id, agent, scope, index)
            for index in indices
            if self.only is None or self.only == (task_id, index)
        ]


@dataclass(frozen=True, slots=True)
class Counts:
    """The plan in numbers. `planned` = done + to verify + refused + to_collect."""

    tasks: int = 0
    planned: int = 0
    done: int = 0
    to_verify: frozenset[Key] = frozenset()
    refused: int = 0
    malformed: int = 0
    renamed: int = 0
    """Tasks whose row names another agent than the one that it runs with."""
    first_renamed: Task | None = None

    @property
    def to_collect(self) -> int:
        return self.planned - self.done - len(self.to_verify) - self.refused

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.tasks + other.tasks,
            self.planned + other.planned,
            self.done + other.done,
            self.to_verify | other.to_verify,
            self.refused + other.refused,
            self.malformed + other.malformed,
            self.renamed + other.renamed,
            self.first_renamed or other.first_renamed,
        )

    def line(self) -> str:
        """The plan as people read it."""
        repeats, uneven = divmod(self.planned, self.tasks) if self.tasks else (0, 1)
        times = ": " if uneven else f" × {number_of(repeats, 'repeat')} = "
        wanted = f"{number_of(self.tasks, 'task')}{times}{number_of(self.planned, 'rollout')}"
        parts = [f"Plan: {wanted}", f"{self.done:,} done"]
        parts += [f"{len(self.to_verify):,} to verify only", f"{self.to_collect:,} to collect"]
        if self.refused:
            parts.append(f"{self.refused:,} failed for good")
        if self.malformed:
            parts.append(number_of(self.malformed, "malformed line"))
        return " · ".join(parts)

    def figures(self) -> dict[str, int]:
        """The same for a program to read."""
        return {
            "tasks": self.tasks,
            "planned": self.planned,
            "done": self.done,
            "to_verify": len(self.to_verify),
            "to_collect": self.to_collect,
            "refused": self.refused,
            "malformed": self.malformed,
        }


def number_of(number: int, what: str) -> str:
    """`1 task`, `2,000 tasks`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def owed(
    tasks: Iterable[Task | Malformed],
    wanted: Wanted,
    settled: Callable[[Key], bool],
) -> Iterator[Attempt | None]:
    """Every key that is still to be collected, in input order, a task's repeats together.

    `settled` says of a key that it is done, waits for its verdict, or has failed for good. A None
    now and then, while there is much to skip, gives the caller a chance to do something else.
    """
    for number, task in enumerate(tasks, 1):
        if number % BREATH == 0:
            yield None
        if isinstance(task, Malformed):
            continue
        for key in wanted.keys(task):
            if not settled(key):
                yield Attempt(key, seeded(task, key.rollout_index) if wanted.add_seed else task)


def seeded(task: Task, seed: int) -> Task:
    """The task with a `seed` of its own, unless its row brings one."""
    params = {"seed": seed, **task.row["responses_create_params"]}
    return task._replace(row={**task.row, "responses_create_params": params})


def count(
    tasks: Iterable[Task | Malformed],
    wanted: Wanted,
    *,
    done: Callable[[Key], bool],
    pending: Collection[Key],
    refused: Collection[Key],
) -> Counts:
    """Some of the input, in numbers."""
    num_tasks = planned = num_done = num_refused = malformed = renamed = 0
    first_renamed: Task | None = None
    to_verify: set[Key] = set()
    for task in tasks:
        if isinstance(task, Malformed):
            malformed += wanted.only is None
            continue
        asked = False
        for key in wanted.keys(task):
            asked = True
            planned += 1
            if done(key):
                num_done += 1
            elif key in refused:
                num_refused += 1
            elif key in pending:
                to_verify.add(key)
        num_tasks += asked
        if asked and agent_named(task.row) not in (None, task.agent):
            renamed += 1
            first_renamed = first_renamed or task
    return Counts(
        num_tasks,
        planned,
        num_done,
        frozenset(to_verify),
        num_refused,
        malformed,
        renamed,
        first_renamed,
    )
