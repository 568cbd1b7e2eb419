"""Joins the rollouts of a file with the scores of their groups.

A score counts only if its digest is that of the members that the file holds now. So the file is
read once before its rollouts are handed out; memory holds a sum and an offset for each group.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import orjson

from ...types import GroupScore, JsonObject, Key
from ..scope import Group, group_of
from .members import group_digest, hold
from .scores import Scored, read_scored

MAX_KEPT = 1_024
"""Lines of groups that are kept parsed: rollouts of a group stand near each other."""


class StoredRow(Protocol):
    """A line that is parsed when it is asked for."""

    @property
    def row(self) -> JsonObject: ...


class GroupRewards:
    """The current scores of one file of groups, by offset."""

    def __init__(self, path: Path, current: dict[Group, int]) -> None:
        self._path, self._current = path, current
        self._kept: dict[Group, JsonObject] = {}

    def of(self, key: Key) -> GroupScore | None:
        """The group's score of a rollout; None if its group has no current score."""
        group = group_of(key)
        if group not in self._current:
            return None
        line = self._line(group)
        for each in line["members"]:
            if (each.get("scope"), each.get("rollout_index")) == key[2:]:
                components, figures = each.get("components"), line.get("group")
                return GroupScore(each.get("reward"), components or {}, figures or {})
        return None

    def _line(self, group: Group) -> JsonObject:
        if (line := self._kept.get(group)) is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            with self._path.open("rb") as stream:
                stream.seek(self._current[group])
                line = self._kept[group] = orjson.loads(stream.readline())
        return line


def join(groups: Path, rollouts: Iterable[tuple[Key, StoredRow]]) -> GroupRewards:
    """The scores of a file of groups that are current for these rollouts, each with its line."""
    scored: dict[Group, Scored] = dict(read_scored(groups))
    totals: dict[Group, int] = {}
    for key, line in rollouts if scored else ():
        if (group := group_of(key)) in scored and "response" in (row := line.row):
            totals[group] = totals.get(group, 0) + hold(key, row).digest
    current = {
        group: each.offset
        for group, each in scored.items()
        if group in totals and group_digest(totals[group]) == each.digest
    }
    return GroupRewards(groups, current)
