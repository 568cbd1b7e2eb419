"""The tasks of one input. An output may also hold rollouts of other inputs."""

from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import number_of
from .compact import Keys, NumberTable, small
from .files import OutputPaths
from .input import number_lines
from .manifest import last_input
from .scan import parse_line, read_object
from .tasks import task_id_of

Covers = Callable[[str, str], bool]
"""Whether the rollouts of an agent in a scope are meant."""


class Others(NamedTuple):
    """What an output holds of other inputs."""

    rollouts: int
    tasks: int


class OwnTasks:
    """Contains the ids of an input's tasks."""

    def __init__(self, numbers: Container[int], names: Container[str] = ()) -> None:
        self._numbers, self._names = numbers, names
        """Ids as `small` makes them: numbers, and the names of foreign tasks."""

    @classmethod
    def of(cls, task_ids: Iterable[str]) -> "OwnTasks":
        found: set[Any] = {*map(small, task_ids)}
        return cls(found, found)

    @classmethod
    def of_file(cls, path: Path) -> "OwnTasks":
        """Those of a file of tasks; ConfigError if it cannot be read."""
        found = NumberTable()
        for number in read_task_numbers(path):
            found.setdefault(number, 0)
        return cls(found)

    def __contains__(self, task_id: str) -> bool:
        return self.has(small(task_id))

    def has(self, task: int | str) -> bool:
        """The same for an id as `small` makes it."""
        return task in self._numbers if isinstance(task, int) else task in self._names

    def count_others(self, done: Keys, covers: Covers) -> Others:
        """What is done of other tasks."""
        rollouts, others = 0, set[int | str]()
        for which, tasks in done.by_scope():
            if covers(*which):
                found = [task for task in tasks if not self.has(task)]
                rollouts += len(found)
                others.update(found)
        return Others(rollouts, len(others))


def read_task_numbers(path: Path) -> Iterator[int]:
    """The ids of a file's tasks as numbers, without reading the tasks themselves."""
    for _, raw in number_lines(path):
        if (row := parse_line(raw)) is not None:
            yield int(task_id_of(row), 16)


def find_earlier_inputs(paths: Iterable[Path]) -> Iterator[str]:
    """A line for each output that holds tasks which are not of its last run's input."""
    for path in paths:
        if path.suffix != ".jsonl":
            continue
        manifest = read_object(OutputPaths(path).manifest)
        counts, name = manifest.get("counts"), last_input(manifest).get("path")
        number = counts.get("other_tasks") if isinstance(counts, dict) else None
        if isinstance(number, int) and name:
            yield (
                f"{path}: {number_of(number, 'task')} of an earlier input, not of {name}:"
                f" +input_jsonl_fpath={name} leaves them out"
            )
