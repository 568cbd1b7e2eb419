"""The journal of a run whose workers write the rollouts themselves."""

from array import array
from collections.abc import Iterator
from typing import Any

from ...types import LineAt, Outcome, Rollout
from ..files import OutputPaths
from ..journal import Journal
from .shards import move_lines


class ShardedJournal(Journal):
    """A journal of rollouts whose lines workers have written; they are copied in the end."""

    def __init__(self, paths: OutputPaths, **options: Any) -> None:
        super().__init__(paths, **options)
        self._places: dict[str, array[int]] = {}
        """File of a worker → offset and size of each of its lines that counts."""

    def append(self, outcome: Outcome) -> Outcome:
        if not (isinstance(outcome, Rollout) and isinstance(outcome.raw, LineAt)):
            return super().append(outcome)
        path, offset, size = outcome.raw
        self._places.setdefault(path, array("Q")).extend((offset, size))
        self.settle(outcome.key)
        return outcome

    def finish(self) -> None:
        if self.paths.shards.is_dir():
            move_lines(self._lines(), self.main_file, self.paths.shards)
            self._places.clear()
        super().finish()

    def _lines(self) -> Iterator[LineAt]:
        for path, places in sorted(self._places.items()):
            for place in zip(places[::2], places[1::2], strict=True):
                yield LineAt(path, *place)
