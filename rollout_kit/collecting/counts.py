"""A plan in numbers, what a run asks of the source of its attempts, and the metrics of a run with
what was in its output before.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..analysis.metrics.summary import Metrics
from ..analysis.metrics.tally import Tally
from ..store.compact import Keys
from ..store.lines import Malformed, rollout_of
from ..store.tasks import BREATH, Others, OwnTasks, agent_name_of
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Task
from .schedule import End, Later


@dataclass(frozen=True, slots=True)
class Counts:
    """The plan of a run in numbers.

    `planned` = done + to_verify + to_copy + to_collect + refused + left_out + decided.
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
    decided: int = 0
    """Rollouts that the goal of the run does not need."""
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
        return self.planned - others - self.decided

    def __add__(self, other: "Counts") -> "Counts":
        names = [name for name in Counts.__slots__ if name != "first_renamed"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Counts(**sums, first_renamed=self.first_renamed or other.first_renamed)

    def figures(self, *names: str) -> dict[str, int]:
        """Some of the numbers, for a program to read."""
        return {name: getattr(self, name) for name in names}


class Asks(Protocol):
    """Which rollouts of a task a run asks for."""

    @property
    def only(self) -> tuple[str, int] | None: ...

    def keys(self, task: Task) -> Sequence[Key]: ...

    def num_keys(self, task: Task) -> int: ...


def count(
    tasks: Iterable[Task | Malformed],
    wanted: Asks,
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


OnTask = Callable[[Collection[Key], Task, Sequence[Key]], None]
"""Receives the keys that failed permanently before, a task, and all keys of the task."""


class RunSource(ABC):
    """Where the attempts of a run come from, and the plan of the run."""

    name: str
    """As people know it: the path of a file, say."""
    input_path: Path | None
    counts: Counts
    arm_ids: Sequence[str]
    is_open_ended: bool = False
    """Whether the plan is not counted to its end, or has none."""
    generates: bool = True
    """Whether its rollouts use tokens of the policy."""
    reads_as_asked: bool = False
    """Whether its rest is read only as far as the run asks for it."""
    lacks: str = "result"
    """What a rollout that failed is without."""
    own: OwnTasks | None = None
    """The tasks of the input, once they are known; None if the output holds no others."""
    others: Others = Others(0, 0)
    """What the output holds of other inputs."""
    on_task: OnTask | None = None

    def follow(self, on_task: OnTask) -> None:
        """Have each task followed before its first attempt; called before the run begins."""
        self.on_task = on_task

    @abstractmethod
    def next(self) -> Attempt | Later | End:
        """The next attempt that is owed."""

    @abstractmethod
    async def count(self) -> None:
        """Count the plan, or the beginning of a long one."""

    async def count_rest(self) -> None:  # noqa: B027 - most plans are counted at once
        """Count a long plan to its end, beside the run."""

    @abstractmethod
    async def know_tasks(self) -> None:
        """Learn which rollouts on disk are of this input's tasks."""

    @abstractmethod
    def covers(self, agent: str, scope: str) -> bool:
        """Whether the rollouts of a scope belong to this run."""

    @abstractmethod
    def is_of_this_run(self, key: Key) -> bool: ...

    @abstractmethod
    def take(self, outcome: Outcome) -> None:
        """Follow an outcome of this run."""

    def add_earlier(self, rollout: Rollout) -> None:  # noqa: B027 - most need not know
        """Follow a rollout of an earlier run."""

    def verifiers(self) -> Collection[str | None]:
        """Servers whose refusals end the run, beside the models."""
        return ()

    @property
    @abstractmethod
    def num_owed(self) -> int:
        """Rollouts that this run may ask its servers about."""

    @property
    @abstractmethod
    def repeats(self) -> int:
        """Rollouts that each task is meant to have."""

    @property
    def num_tasks(self) -> int:
        """Tasks of the plan."""
        return self.counts.tasks

    @property
    def num_in_scope(self) -> int:
        """Planned rollouts that count in the metrics."""
        return self.counts.planned - self.counts.decided

    def num_on_disk(self, tally: Tally) -> int:
        """Planned rollouts that are on disk."""
        return self.counts.done + tally.rollouts

    def num_missing(self, tally: Tally) -> int:
        """Planned rollouts that are not on disk."""
        return max(0, self.counts.planned - self.counts.decided - self.num_on_disk(tally))

    def input_entry(self) -> JsonObject | None:
        """This run's input, as the manifest remembers it."""
        return None

    def own_results(self) -> JsonObject:
        """What this source adds to the metrics file."""
        return {}


class WholeMetrics:
    """The metrics of a run, with the rollouts that its output had before.

    `rows` are the lines of those rollouts. `pending` are the keys of stored responses without a
    verdict. They wait until the input is read, because they may be of another input.
    """

    def __init__(
        self,
        metrics: Metrics,
        source: RunSource,
        rows: Iterable[JsonObject],
        pending: Container[Key],
        add_to_groups: Callable[[Rollout], object],
    ) -> None:
        self.metrics, self._source = metrics, source
        self.is_complete = False
        """Whether the metrics have everything that was on disk before the run."""
        self._rows, self._pending, self._add_to_groups = iter(rows), pending, add_to_groups
        self._undecided: list[Rollout] = []

    def add(self, rollout: Rollout) -> None:
        """Count a rollout of this run."""
        if self.is_complete or rollout.key not in self._pending:
            self.metrics.add(rollout)
        else:
            self._undecided.append(rollout)

    async def know_tasks(self) -> None:
        """From here on, what is not of this input's tasks is counted apart."""
        if self._source.own is None:
            await self._source.know_tasks()
        self.metrics.own = self._source.own
        while self._undecided:
            self.metrics.add(self._undecided.pop())

    async def count_rows(self) -> None:
        """Count the rollouts before, as far as that was not done; others may work meanwhile."""
        for number, row in enumerate(self._rows, 1):
            rollout = rollout_of(row)
            self.metrics.add(rollout)
            self._source.add_earlier(rollout)
            self._add_to_groups(rollout)
            if number % BREATH == 0:
                await asyncio.sleep(0)
