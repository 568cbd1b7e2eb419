"""The tasks of a mix: each source is gone through for ever, and gives the next group when it is
furthest behind its share."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...collecting.counts import Counts
from ...collecting.run import Run
from ...collecting.schedule import LATER, Later
from ...collecting.sources import TaskSource
from ...store.lines import Malformed
from ...store.scope import Group, group_of, key_of_group
from ...types import Attempt, Outcome, Say, Task
from ..buffer.group import BufferedGroup, Settled
from ..producing.acks import ACKED
from ..producing.epochs import EpochSource
from .mix_file import SOURCE, Mix
from .outages import Outages
from .shares import Shares
from .source_figures import SourceFigures


class MixedSource(EpochSource):
    """Plans one epoch of each source at a time."""

    def __init__(self, *given: Any, mix: Mix, **named: Any) -> None:
        super().__init__(*given, epochs=None, **named)
        self.mix = mix
        self.shares = Shares({name: each.weight for name, each in mix.sources.items()})
        self._tasks_of: dict[str, list[Task]] = {name: [] for name in mix.sources}
        self._source_of: dict[str, str] = {}
        """Id of a task → its source."""
        self.figures = {name: SourceFigures() for name in mix.sources}
        self.outages = Outages(self._source_of.get, self.tickets.give_back, self._let_off)

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
            if name := self._source_of.get(_task_of(key)):
                self.shares.restore(key, name)
                self.shares.end(key, is_used=True)

    def note_complete(self, group: Group) -> None:
        """Count a group that an earlier run has begun."""
        if name := self._source_of.get(group.task_id):
            self.shares.restore(key_of_group(group), name)

    def note_put(self, group: BufferedGroup) -> None:
        """Measure a group that was put into the buffer."""
        if name := self._source_of.get(_task_of(group.key)):
            self.figures[name].add(group)

    def note_settled(self, settled: Iterable[Settled]) -> None:
        """Count groups that have left the buffer."""
        for each in settled:
            self.shares.end(each.key, is_used=each.reason == ACKED)
            name = self._source_of.get(_task_of(each.key))
            if name and each.reason == ACKED:
                self.figures[name].settle(each)

    def note_lost(self, group: Group) -> None:
        """Count a group that is not put into the buffer."""
        self.shares.end(key_of_group(group), is_used=False)

    def take(self, outcome: Outcome) -> None:
        super().take(outcome)
        self.outages.take(outcome)

    async def watch(self, run: Run, say: Say) -> None:
        """Look after the environments of the sources, until cancelled."""
        agents = run.runner.agents
        of = {
            name: [(agent, agents[agent]) for agent in {task.agent for task in tasks}]
            for name, tasks in self._tasks_of.items()
        }
        servers = {
            name: [
                server
                for agent, plan in plans
                for server in (plan.resources, plan.server or agent, plan.model_server)
                if server
            ]
            for name, plans in of.items()
        }
        await self.outages.watch(run, say, servers)

    def report(self) -> str:
        found = [f"Mix: {self.shares.describe()}"]
        for name, figures in self.figures.items():
            seconds = self.outages.down_s[name]
            down = f"down for {seconds:.0f} s" if seconds else ""
            if about := ", ".join(filter(None, (figures.describe(), down))):
                found.append(f"{name}: {about}")
        return "; ".join(filter(None, (*found, super().report())))

    def measure(self) -> dict[str, float]:
        """The share of each source so far, and its figures."""
        total = self.shares.used.total()
        found = {f"mix/{name}/share": n / total for name, n in self.shares.used.items() if total}
        for name, figures in self.figures.items():
            found |= {f"mix/{name}/{what}": value for what, value in figures.measure().items()}
            found[f"mix/{name}/is_down"] = float(name in self.outages.why)
        return found

    def _let_off(self, name: str) -> None:
        if self.mix.when_down == "skip":
            self.shares.let_off(name)

    def _all(self) -> Iterator[Attempt | Later]:
        yield from self.find_parked(self._contents.pending)
        yield from self.tickets.hold_back(self._take_turns())

    def _take_turns(self) -> Iterator[Attempt | Later]:
        sources = {name: self._go_through(tasks) for name, tasks in self._tasks_of.items() if tasks}
        while sources:
            yield from self.outages.take_again()
            down = self.outages.why
            up = sources if self.mix.when_down == "wait" else [n for n in sources if n not in down]
            name = self.shares.choose(up or sources)
            if name in down:
                yield Later(self.outages.changed, f"{name}, which is down")
                continue
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


def _task_of(key: str) -> str:
    """The id of the task of a group in a buffer."""
    return key.partition(":")[0]
