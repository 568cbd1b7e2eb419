"""The tasks of a file, gone through several times or for ever."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from ...analysis.metrics.tally import Tally
from ...collecting.counts import Counts
from ...collecting.run import Run
from ...collecting.schedule import Later
from ...collecting.sources import TaskSource
from ...errors import ConfigError, number_of
from ...store.scope import Group, parse_scope
from ...types import Attempt, JsonObject, Outcome, Rollout, Say
from ..buffer.group import BufferedGroup, Settled
from ..task_policies import NAMES, AnyPolicy, Uniform, read_policy
from .lengths import TaskLengths
from .task_choice import TaskChoice
from .tickets import Tickets


def find_policy(given: str | JsonObject) -> AnyPolicy:
    """The policy that a command names; ConfigError if there is none."""
    try:
        return read_policy(given)
    except ValidationError as error:
        said = "; ".join(each["msg"] for each in error.errors())
        what = f"there are {', '.join(NAMES)}"
        raise ConfigError(f"task_policy: {given}: {said}; {what}") from None


class EpochSource(TaskSource):
    """Plans one epoch at a time, from the first one that is not complete."""

    def __init__(self, *given: Any, epochs: int | None = 1, **named: Any) -> None:
        super().__init__(*given, **named)
        self.wanted = replace(self.wanted, num_epochs=epochs)
        self.tickets = Tickets()
        self._lengths = TaskLengths() if self._command.longest_first else None
        policy = find_policy(self._command.task_policy)
        self.choice = None if isinstance(policy, Uniform) else TaskChoice(policy)
        self._each: Counts = Counts()
        """The plan of an epoch of which nothing is done."""
        self._done: Counter[int] = Counter()
        """Epoch → its rollouts on disk."""

    async def count(self) -> None:
        """Count up to the epoch that is under way."""
        for (_, scope), number in self._contents.done.numbers().items():
            self._done[parse_scope(scope).epoch or 0] += number
        await super().count()
        if self.is_open_ended:
            await super().count_rest()
        last = self.counts
        self._each = Counts(tasks=last.tasks, planned=last.planned)
        while not (last.to_collect or last.to_verify) and self._has_next():
            self._kept = None
            self.wanted = self.wanted.at(self.wanted.epoch + 1)
            is_begun = self._done[self.wanted.epoch] > 0
            last = await self._count(self.reader.read()) if is_begun else self._each
            self.counts += replace(last, repeated=0, malformed=0, renamed=0)
        self.is_open_ended = self.wanted.num_epochs is None

    async def count_rest(self) -> None:
        """Nothing is left to count: an endless plan has no end, and any other was counted."""

    def take(self, outcome: Outcome) -> None:
        super().take(outcome)
        if isinstance(outcome, Rollout):
            self.add_earlier(outcome)

    def add_earlier(self, rollout: Rollout) -> None:
        if self._lengths:
            self._lengths.take(rollout)
        if self.choice:
            self.choice.take(rollout)

    def leave_out(self, attempts: Iterator[Attempt | Later]) -> Iterator[Attempt | Later]:
        """The attempts without those of tasks that are not wanted in their epoch."""
        if self.choice is None:
            return attempts
        return self.choice.leave_out(attempts, lambda each: self.wanted.num_keys(each.task))

    def scale_of(self, group: Group) -> float:
        """What the rewards of a group are multiplied by for the trainer."""
        return 1.0

    def note_used(self, keys: Iterable[str]) -> None:
        """Take the keys of the groups that the trainer has used before this run."""

    def note_complete(self, group: Group) -> None:
        """Take a group that is put into the buffer; an earlier run may have begun it."""

    def note_put(self, group: BufferedGroup) -> None:
        """Take a group that was put into the buffer."""

    async def watch(self, run: Run, say: Say) -> None:
        """Look after what the tasks need, until cancelled."""

    def note_settled(self, settled: Iterable[Settled]) -> None:
        """Take groups that have left the buffer."""

    def note_lost(self, group: Group) -> None:
        """Take a group that is not put into the buffer."""

    def measure(self) -> dict[str, float]:
        """Figures of this source for the page and the trackers."""
        return {}

    def report(self) -> str:
        """A line for the end of the run; empty if there is nothing to say."""
        if self.choice is None:
            return ""
        left = number_of(self.choice.num_left_out, "group")
        return f"Task policy {self.choice.policy.name}: {left} left out"

    def num_missing(self, tally: Tally) -> int:
        return 0 if self.tickets.is_over or self.is_open_ended else super().num_missing(tally)

    def _has_next(self) -> bool:
        epochs = self.wanted.num_epochs
        return self._each.planned > 0 and (epochs is None or self.wanted.epoch + 1 < epochs)

    def _all(self) -> Iterator[Attempt | Later]:
        attempts = super()._all()
        while True:
            attempts = self._lengths.sort(attempts) if self._lengths else attempts
            yield from self.tickets.hold_back(self.leave_out(attempts))
            if self.tickets.is_over or not self._has_next():
                return
            self.wanted = self.wanted.at(self.wanted.epoch + 1)
            done = min(self._done[self.wanted.epoch], self._each.planned)
            self.counts += replace(self._each, done=done)
            attempts = self.find_owed(self.reader.read())
