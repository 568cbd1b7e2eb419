"""Which groups may begin: each needs a ticket of the buffer before its first attempt."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from ...collecting.schedule import Later
from ...errors import number_of
from ...store.scope import Group, group_of
from ...types import Attempt


class BufferTicket(NamedTuple):
    """`version` is the trainer's when it was given."""

    name: str = ""
    version: int | None = None


class Tickets:
    """Holds attempts back until their group has a ticket, if a buffer limits the run."""

    def __init__(self) -> None:
        self.given: dict[Group, BufferTicket] = {}
        """Those of the groups in progress."""
        self._free: list[BufferTicket] = []
        self.wanted, self._changed = asyncio.Event(), asyncio.Event()
        self._is_limited = self.is_over = False
        """Whether groups need tickets; whether the trainer needs nothing more."""
        self._num_leased = 0

    def hold_back(self, attempts: Iterator[Attempt | Later]) -> Iterator[Attempt | Later]:
        """The attempts; the first one of a group waits for a ticket."""
        for attempt in attempts:
            if self._is_limited and isinstance(attempt, Attempt) and attempt.stored is None:
                group = group_of(attempt.key)
                while group not in self.given:
                    if self.is_over:
                        return
                    if self._free:
                        self.given[group] = self._free.pop()
                    else:
                        self._changed.clear()
                        self.wanted.set()
                        yield Later(self._changed, self._say_why())
            yield attempt

    def limit(self) -> None:
        """From now on, groups need tickets."""
        self._is_limited = True

    def add(self, tickets: list[BufferTicket]) -> None:
        self._free += tickets
        self.wanted.clear()
        self._changed.set()

    def give_back(self, group: Group) -> None:
        """Let another group begin in place of this one."""
        if (ticket := self.given.pop(group, None)) is not None:
            self.add([ticket])

    def end(self) -> None:
        """Let no group begin any more."""
        self.is_over = True
        self._changed.set()

    def names(self) -> list[str]:
        return [ticket.name for ticket in (*self.given.values(), *self._free)]

    def take_all(self) -> list[str]:
        """Their names; none is held any more."""
        names, self.given, self._free = self.names(), {}, []
        return names

    def note_leased(self, number: int) -> None:
        """Note how many groups the trainer holds while no other waits for it."""
        if number != self._num_leased:
            self._num_leased = number
            self._changed.set()  # something else is waited for

    def _say_why(self) -> str:
        if not self._num_leased:
            return "the trainer to make room in the buffer"
        left = number_of(self._num_leased, "group")
        return f"the trainer to acknowledge {left} that it was handed out"
