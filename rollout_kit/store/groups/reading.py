"""Reads whole groups from a file of rollouts, in one pass; memory holds open groups only."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...types import JsonObject, Key
from ..rollouts import RolloutFile
from ..scope import Group, group_of
from ..tasks import BREATH
from .members import HeldLine, HeldMember, hold, task_of


class FoundGroup(NamedTuple):
    """`task` is without create params."""

    group: Group
    task: JsonObject
    members: dict[Key, HeldMember]


async def read_groups(
    path: Path,
    size: int,
    wanted: Mapping[Group, int | None],
    hold: Callable[[Key, JsonObject], HeldMember] = hold,
    *,
    with_places: bool = False,
) -> AsyncIterator[FoundGroup]:
    """The wanted groups in the first `size` bytes, each once it has so many members; with None, at
    the end. Other work of the event loop goes on meanwhile."""
    begun: dict[Group, FoundGroup] = {}
    left = set(wanted)
    for number, line in enumerate(RolloutFile(path).heads(), 1):
        if line.offset >= size:
            break
        if number % BREATH == 0:
            await asyncio.sleep(0)
        assert line.head is not None
        if (group := group_of(key := line.head.key)) not in left:
            continue
        row = line.row
        found = begun.get(group)
        if found is None:
            found = begun[group] = FoundGroup(group, task_of(row), {})
        place = HeldLine.of(path, line.offset, line.raw) if with_places else None
        found.members[key] = hold(key, row)._replace(place=place)
        if len(found.members) == wanted[group]:
            left.discard(group)
            yield begun.pop(group)
    for found in begun.values():
        if wanted[found.group] is None:
            yield found
