"""The journal of a run whose workers write the rollouts themselves."""

import shutil
from array import array
from typing import Any

from ..types import LineAt, Outcome, Rollout
from .files import OutputPaths
from .journal import Journal


class ShardedJournal(Journal):
    """A journal of rollouts whose lines workers have written; they are copied in the end, or when
    the output is read during the run."""

    def __init__(self, paths: OutputPaths, **options: Any) -> None:
        super().__init__(paths, **options)
        self._places: dict[str, array[int]] = {}
        """File of a worker → offset and size of each of its lines that counts."""

    def append(self, outcome: Outcome) -> Outcome:
        if not (isinstance(outcome, Rollout) and isinstance(place := outcome.raw, LineAt)):
            return super().append(outcome)
        if place.path not in self._places:
            place.read()  # at the end of the run it would be too late to see another disk
            self._places[place.path] = array("Q")
        self._places[place.path].extend(place[1:])
        self.settle(outcome.key)
        return outcome

    def gather(self) -> None:
        for path, places in sorted(self._places.items()):
            copied = 0
            try:
                for place in zip(places[::2], places[1::2], strict=True):
                    self._copy(LineAt(path, *place).read())
                    copied += 2
            finally:
                del places[:copied]

    def finish(self) -> None:
        self.gather()
        self.main_file.sync()
        shutil.rmtree(self.paths.shards, ignore_errors=True)
        super().finish()

    def _copy(self, raw: bytes) -> None:
        offset = self.size
        self.main_file.write(raw)
        record = self.index.make(offset, raw)
        self.index.keep(offset, raw, record, is_odd=record is None or not record.is_plain)
