"""`<stem>.d/groups.jsonl`: one line per scored group, and which of them count.

Lines are only appended. Of several lines of a group the last one counts, and only while its digest
is that of the members in the rollouts file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from ...reading import line_at, parse_line, read_lines
from ...types import JsonObject, Key
from ..files import OutputPaths
from ..held import HeldFile
from ..kinds import A_NUMBER_OR_NULL, Kind, kind_of, mark
from ..lines import now_text
from ..scope import Group

KIND: Kind = "group"


class Scored(NamedTuple):
    """The last line of a group: where it is, what it scored, and which verifier did."""

    offset: int
    digest: str
    verifier: str


class MemberScore(Protocol):
    """The score of a member, as a verifier gave it."""

    @property
    def reward(self) -> float | None: ...
    @property
    def components(self) -> Mapping[str, float]: ...


def build_group_line(
    group: Group,
    task_index: int,
    digest: str,
    verifier: str,
    members: Iterable[tuple[Key, MemberScore | None]],
    figures: JsonObject,
) -> JsonObject:
    """`members` are keys with their scores; None for one that cannot be scored."""
    return {
        **mark(KIND),
        "agent_ref": {"name": group.agent},
        "_ng_task_index": task_index,
        "task_id": group.task_id,
        "scope": group.scope,
        "digest": digest,
        "verifier": verifier,
        "at": now_text(),
        "members": [
            {
                "scope": key.scope,
                "rollout_index": key.rollout_index,
                "reward": score.reward if score else None,
                "components": score.components if score else {},
            }
            for key, score in members
        ],
        "group": figures,
    }


def group_of_line(line: Mapping[str, Any]) -> Group | None:
    """The group of a line; None if it is no sound line of a group."""
    agent, members = line.get("agent_ref"), line.get("members")
    task_id, scope = line.get("task_id"), line.get("scope")
    name = agent.get("name") if isinstance(agent, dict) else None
    is_sound = (
        line.get("kind") == KIND == kind_of(line, KIND)
        and isinstance(line.get("digest"), str)
        and isinstance(members, list)
        and all(map(_is_member, members))
        and isinstance(line.get("group") or {}, dict)
    )
    if not (is_sound and isinstance(task_id, str) and isinstance(scope, str)):
        return None
    return Group(task_id, name, scope) if isinstance(name, str) else None


def _is_member(each: Any) -> bool:
    return (
        isinstance(each, dict)
        and type(each.get("reward")) in A_NUMBER_OR_NULL
        and isinstance(each.get("components") or {}, dict)
    )


def read_scored(path: Path) -> Iterator[tuple[Group, Scored]]:
    """Every sound line of the file."""
    for offset, raw in read_lines(path):
        line = parse_line(raw)
        if line is not None and (group := group_of_line(line)) is not None:
            yield group, Scored(offset, line["digest"], str(line.get("verifier") or ""))


class GroupFile:
    """The file while a run appends to it. `open_file` opens it for the journal, at the first line
    if there is no file yet."""

    def __init__(self, paths: OutputPaths, open_file: Callable[[], HeldFile]) -> None:
        self._open_file = open_file
        self._file = open_file() if paths.groups.exists() else None
        self.scored = dict(read_scored(paths.groups))
        """The last line of each group when the run began."""

    def append(self, line: JsonObject) -> Scored:
        if self._file is None:
            self._file = self._open_file()
        offset = self._file.size
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        return Scored(offset, line["digest"], line["verifier"])

    def read(self, scored: Scored) -> JsonObject:
        assert self._file is not None
        return orjson.loads(line_at(self._file.descriptor, scored.offset))
