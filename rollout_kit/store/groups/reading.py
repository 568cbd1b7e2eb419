"""Reads whole groups from a file of rollouts, in one pass; memory holds open groups only."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...types import JsonObject, Key
from ..lines import head_reader, kind_of, parse_head
from ..scan import parse_line, read_lines
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
    for number, (key, offset, raw) in enumerate(_read_keys(path, size), 1):
        if number % BREATH == 0:
            await asyncio.sleep(0)
        if (group := group_of(key)) not in left or (line := parse_line(raw)) is None:
            continue
        found = begun.get(group)
        if found is None:
            found = begun[group] = FoundGroup(group, task_of(line), {})
        place = HeldLine.of(path, offset, raw) if with_places else None
        found.members.setdefault(key, hold(key, line)._replace(place=place))
        if len(found.members) == wanted[group]:
            left.discard(group)
            yield begun.pop(group)
    for found in begun.values():
        if wanted[found.group] is None:
            yield found


def _read_keys(path: Path, size: int) -> Iterator[tuple[Key, int, bytes]]:
    """The lines of rollouts, with their keys and offsets."""
    read_head = head_reader()
    for offset, raw in read_lines(path):
        if offset >= size:
            return
        head = read_head(raw)
        if head is None and (row := parse_line(raw)) is not None:
            head = parse_head(row) if kind_of(row, "rollout") == "rollout" else None
        if head is not None:
            yield head.key, offset, raw
