"""What is to be scored: a group in memory, or one that is to be read from the output."""

from dataclasses import dataclass
from typing import NamedTuple

from ...store.groups.members import HeldMember, group_digest, task_of_row
from ...store.scope import Group
from ...types import JsonObject, Key
from .slots import OpenGroup


class Job(NamedTuple):
    """A group to be scored. `members` are its slots in order, None for those that failed."""

    group: Group
    task_index: int
    task: JsonObject
    members: dict[Key, HeldMember | None]
    is_final: bool = True
    """False if members may still come."""
    is_again: bool = False
    """Whether this run has scored it before, with fewer members."""

    @property
    def digest(self) -> str:
        return group_digest(sum([each.digest for each in self.members.values() if each]))


@dataclass(frozen=True, slots=True)
class Needed:
    """A settled group that is to be read from the output. `num_members` None: not known."""

    task_index: int
    num_members: int | None
    failed: frozenset[Key]


def make_job(group: Group, opened: OpenGroup, missing: set[Key]) -> Job:
    """The job of an open group; the slots `missing` have no member."""
    held = opened.held or {}
    slots = {key: held.get(key) for key in sorted({*held, *missing})}
    return Job(group, opened.task_index, task_of_row(opened.row), slots)
