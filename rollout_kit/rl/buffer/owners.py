"""Who holds a lease: a name that may be given, and the process of the consumer.

A consumer that was killed cannot give its groups back. Another one on its machine sees that its
process has ended, and does it. Of a process elsewhere nothing is known: there the name tells that a
consumer is the next life of an earlier one.
"""

import os
from dataclasses import dataclass
from itertools import count
from typing import Self

from ...serving.process_tree import may_run, name_machine, read_start

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """`str` of it is the owner of a lease, in every buffer."""

    name: str
    machine: str
    pid: int
    start: str | None
    number: str
    """Of the consumer in its process."""

    @classmethod
    def of_this_process(cls, name: str = "") -> Self:
        """An owner that no other consumer has."""
        pid = os.getpid()
        return cls(name, name_machine(), pid, read_start(pid), str(next(_numbers)))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for the owner that a client in another language gives."""
        name, mark, rest = text.rpartition("@")
        parts = rest.rsplit("#", 3)
        if not mark or len(parts) != 4 or not parts[1].isdecimal():
            return None
        machine, pid, start, number = parts
        return cls(name, machine, int(pid), start or None, number)

    def __str__(self) -> str:
        return f"{self.name}@{self.machine}#{self.pid}#{self.start or ''}#{self.number}"

    def replaces(self, other: "LeaseOwner", *, is_new: bool) -> bool:
        """Whether the other one has ended: its process has, or this one is new and has its name."""
        if other.machine == self.machine:
            return not may_run(other.pid, other.start)
        return is_new and bool(self.name) and other.name == self.name

    def describe(self) -> str:
        """For people."""
        host = self.machine.partition("/")[0]
        return f"{f'{self.name}, ' if self.name else ''}process {self.pid} of {host}"
