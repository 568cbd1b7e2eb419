"""The rollouts of several files, as exports and comparisons take them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from ...errors import ConfigError
from ...reading import parse_line
from ...store.compact import Keys
from ...store.filters.expression import Filter
from ...store.input import number_lines
from ...store.kinds import REPEATED
from ...store.rollouts import FILE_BITS, Candidate, RolloutFile, open_rollouts
from ...store.tasks import OwnTasks
from ...types import Key, Rollout
from .grouped import is_group, read_group

OF_OTHERS = "of no task of input_jsonl_fpath"


class RolloutSource:
    """The rollouts of several files, each key once; ConfigError if a file cannot be read."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        reads_all: bool = False,
        tasks: Path | None = None,
    ) -> None:
        """`reads_all`: each rollout is wanted, so an index would save nothing. `tasks`: a file of
        tasks; rollouts of others are left out."""
        self._own = OwnTasks.of_file(tasks) if tasks else None
        self.left_out = Counter[str]()
        """Reason → lines, once all candidates were taken."""
        self._files = [
            _open(Path(path).expanduser(), number, reads_all) for number, path in enumerate(paths)
        ]

    def candidates(self, keeps: Filter | None = None) -> Iterator[Candidate]:
        """All rollouts, in the order of the files; each tells whether `keeps` keeps it."""
        seen, self.left_out = Keys(), Counter()
        for file in self._files:
            found = Counter[str]()
            for each in file.candidates(keeps):
                if self._own is not None and each.key.task_id not in self._own:
                    found[OF_OTHERS] += 1
                elif seen.add(each.key):
                    yield each
                else:
                    found[REPEATED] += 1
            self.left_out += file.left_out + found

    def read(self, places: Sequence[int]) -> Iterator[Rollout]:
        """The rollouts at these places, which ascend."""
        for number, found in groupby(places, lambda place: place >> FILE_BITS):
            first = number << FILE_BITS
            yield from self._files[number].read([place - first for place in found])


def _open(path: Path, number: int, reads_all: bool) -> RolloutFile:
    if not path.is_fifo():
        first = [raw for _, raw in islice(number_lines(path), 3)]
        if any(is_group(parse_line(raw)) for raw in first):  # one may be damaged
            return GroupedFile(path, number=number)
    return open_rollouts(path, reads_all=reads_all, number=number)


class GroupedFile(RolloutFile):
    """A file whose lines are groups of answers, each of which is a rollout."""

    def rollouts(self, seen: Keys | None = None) -> Iterator[Rollout]:
        numbers = Counter[Key]()
        for position, (number, raw) in enumerate(number_lines(self.path)):
            line = parse_line(raw)
            if line is None or not is_group(line):
                raise ConfigError(f"{self.path}:{number}: no line of grouped answers, or no JSON")
            try:
                yield from read_group(line, position, numbers)
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{self.path}:{number}: {error}") from None
