"""Joins the rollouts of a file with the scores of their groups.

A score counts only if its digest is that of the members that the file holds now. So the file is
read once before its rollouts are handed out; memory holds a sum and an offset for each group.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from ...types import GroupScore, JsonObject, Key
from ..compact import Keys
from ..files import OutputPaths
from ..input import number_lines, plain_path
from ..lines import key_of, kind_of
from ..scan import parse_line
from ..scope import Group, group_of
from .members import group_digest, hold
from .scores import Scored, read_scored

MAX_KEPT = 1_024
"""Lines of groups that are kept parsed: rollouts of a group stand near each other."""


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


def find_group_rewards(path: Path) -> GroupRewards | None:
    """The scores beside a file of rollouts; None if there are none."""
    plain = plain_path(path)
    if plain.suffix != ".jsonl":
        return None
    groups = OutputPaths(plain).groups
    if not groups.is_file() or not path.is_file():
        return None
    return _join(path, groups, *map(_state_of, (path, groups)))


@lru_cache(maxsize=4)
def _join(path: Path, groups: Path, *states: tuple[Any, ...]) -> GroupRewards:
    """`states` tell whether the files are those that were joined before."""
    scored: dict[Group, Scored] = dict(read_scored(groups))
    totals: dict[Group, int] = {}
    seen = Keys()
    for _, raw in number_lines(path) if scored else ():
        line = parse_line(raw)
        if line is None or kind_of(line, "rollout") != "rollout" or "response" not in line:
            continue
        key = key_of(line)
        if key is not None and (group := group_of(key)) in scored and seen.add(key):
            totals[group] = totals.get(group, 0) + hold(key, line).digest
    current = {
        group: each.offset
        for group, each in scored.items()
        if group in totals and group_digest(totals[group]) == each.digest
    }
    return GroupRewards(groups, current)


def _state_of(path: Path) -> tuple[Any, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
