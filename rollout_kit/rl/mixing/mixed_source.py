"""The tasks of a mix: each source is gone through for ever, and gives the next group when it is
furthest behind its share."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...collecting.counts import Counts
from ...collecting.schedule import LATER, Later
from ...collecting.sources import TaskSource
from ...store.lines import Malformed
from ...store.scope import Group, group_of
from ...types import Attempt, Task
from ..buffer.group import Settled
from ..producing.acks import ACKED
from ..producing.epochs import EpochSource
from ..producing.producer import key_of_group
from .mix_file import SOURCE, Mix
from .shares import Shares


class MixedSource(EpochSource):
    """Plans one epoch of each source at a time."""

    def __init__(self, *given: Any, mix: Mix, **named: Any) -> None:
        super().__init__(*given, epochs=None, **named)
        self.mix = mix
        self.shares = Shares({name: each.weight for name, each in mix.sources.items()})
        self._tasks_of: dict[str, list[Task]] = {name: [] for name in mix.sources}
        self._source_of: dict[str, str] = {}
        """Id of a task → its source."""

    async def count(self) -> None:
        await TaskSource.count(self)
        if self.is_open_ended:
            await TaskSource.count_rest(self)
        self._kept, self.is_open_ended = None, True
        for task in self.reader.read():
            if not isinstance(task, Malformed):
                name = str(task.row[SOURCE])
                self._tasks_of[name].append(task)
                self._source_of[task.task_id] = name

    def scale_of(self, group: Group) -> float:
        """What the rewards of a group are multiplied by for the trainer."""
        name = self._source_of.get(group.task_id)
        return self.mix.sources[name].reward_scale if name else 1.0

    def note_used(self, keys: Iterable[str]) -> None:
        """Count the groups that were used before this run began."""
        for key in keys:
            if name := self._source_of.get(key.partition(":")[0]):
                self.shares.restore(key, name)
                self.shares.end(key, is_used=True)

    def note_complete(self, group: Group) -> None:
        """Count a group that an earlier run has begun."""
        if name := self._source_of.get(group.task_id):
            self.shares.restore(key_of_group(group), name)

    def note_settled(self, settled: Iterable[Settled]) -> None:
        """Count groups that have left the buffer."""
        for each in settled:
            self.shares.end(each.key, is_used=each.reason == ACKED)

    def note_lost(self, group: Group) -> None:
        """Count a group that is not put into the buffer."""
        self.shares.end(key_of_group(group), is_used=False)

    def report(self) -> str:
        return "; ".join(filter(None, (f"Mix: {self.shares.describe()}", super().report())))

    def measure(self) -> dict[str, float]:
        """The share of each source so far."""
        total = self.shares.used.total()
        return {f"mix/{name}/share": n / total for name, n in self.shares.used.items() if total}

    def _all(self) -> Iterator[Attempt | Later]:
        yield from self.find_parked(self._contents.pending)
        yield from self.tickets.hold_back(self._take_turns())

    def _take_turns(self) -> Iterator[Attempt | Later]:
        sources = {name: self._go_through(tasks) for name, tasks in self._tasks_of.items() if tasks}
        while sources:
            name = self.shares.choose(sources)
            found = next(sources[name])
            if isinstance(found, Later):
                yield found
                continue
            self.shares.begin(key_of_group(group_of(found[0].key)), name)
            yield from found

    def _go_through(self, tasks: Sequence[Task]) -> Iterator[list[Attempt] | Later]:
        """The groups of a source, epoch after epoch."""
        for epoch in itertools.count():
            wanted = self.wanted.at(epoch)
            if epoch:
                planned = sum(map(wanted.num_keys, tasks))
                self.counts += Counts(planned=planned, done=0)
            for task in tasks:
                found = self.leave_out(self.find_owed([task], wanted))
                if owed := [each for each in found if isinstance(each, Attempt)]:
                    yield owed
            yield LATER  # all of an epoch may be done
