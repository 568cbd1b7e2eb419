"""Which groups may begin: each needs a ticket of the buffer before its first attempt."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from ...collecting.schedule import Later
from ...errors import number_of
from ...store.scope import Group, group_of
from ...types import Attempt


class Ticket(NamedTuple):
    """A place in the buffer. `version` is the trainer's when it was given."""

    name: str = ""
    version: int | None = None


class Tickets:
    """Holds attempts back until their group has a ticket. Until `limit`, none needs one."""

    def __init__(self) -> None:
        self.given: dict[Group, Ticket] = {}
        """Those of the groups in progress."""
        self.wanted = asyncio.Event()
        """Whether a group waits for a ticket."""
        self.is_over = False
        """Whether the trainer needs nothing more."""
        self._is_limited = False
        self._free: list[Ticket] = []
        self._changed = asyncio.Event()
        self._num_leased = 0

    def limit(self) -> None:
        """From now on a group needs a ticket."""
        self._is_limited = True

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

    def add(self, tickets: list[Ticket]) -> None:
        """Let as many groups begin."""
        self._free += tickets
        self.wanted.clear()
        self._changed.set()

    def end(self) -> None:
        """Let no group begin any more."""
        self.is_over = True
        self._changed.set()

    def give_back(self, group: Group) -> None:
        """Let another group begin in place of this one."""
        if (ticket := self.given.pop(group, None)) is not None:
            self._free.append(ticket)

    def names(self) -> list[str]:
        return [ticket.name for ticket in (*self.given.values(), *self._free)]

    def clear(self) -> None:
        self.given, self._free = {}, []

    def note_leased(self, number: int) -> None:
        """Note how many groups the trainer holds while no other waits for it."""
        if number != self._num_leased:
            self._num_leased = number
            self._changed.set()  # something else is waited for

    def _say_why(self) -> str:
        """What is waited for where the buffer gives no ticket."""
        if not self._num_leased:
            return "the trainer to make room in the buffer"
        left = number_of(self._num_leased, "group")
        return f"the trainer to acknowledge {left} that it was handed out"
