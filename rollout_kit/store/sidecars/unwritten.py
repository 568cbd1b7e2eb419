"""The sink of a run without an output."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

from ...types import JsonObject, Key, Outcome, StoredTurn
from ..contents import Contents
from ..index.kept import KeptIndex
from ..journal import Journal
from ..tasks import Malformed


class NoJournal:
    """A sink that keeps nothing on disk: for a run without an output."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.notes: list[str] = []
        self.index = KeptIndex(None)
        self.writing_s = 0.0

    def append(self, outcome: Outcome) -> Outcome:
        return outcome

    together = nullcontext

    def append_turn(self, turn: StoredTurn) -> None:
        return

    num_unfinished = 0

    def find_turns(self, key: Key) -> list[JsonObject]:
        return []

    def append_malformed(self, malformed: Malformed, source: str) -> bool:
        return True

    def earlier_rows(self) -> Iterator[JsonObject]:
        return iter(())

    def pending_line(self, key: Key) -> JsonObject:
        raise KeyError(key)

    def num_parked(self, wanted: Callable[[Key], bool]) -> int:
        return 0

    def check(self) -> None:
        return

    sync = finish = check

    def close(self, *, clean: bool) -> None:
        return


AnyJournal = Journal | NoJournal
