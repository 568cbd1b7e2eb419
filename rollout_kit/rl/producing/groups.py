"""Groups of a collection as a buffer holds them."""

from collections.abc import Callable

from ...store.groups.members import HeldMember
from ...store.scope import Group
from ...trajectory import span_versions, versions_of
from ...types import JsonObject, Key
from ..buffer.group import BufferedGroup


class ScoredGroups:
    """Hands the members of each group and its score to `take`, once both are there: the line of the
    score, or None if the group could not be scored. Either may come first."""

    def __init__(self, take: Callable[[Group, list[HeldMember], JsonObject | None], None]) -> None:
        self._take = take
        self._members: dict[Group, list[HeldMember]] = {}
        self._scores: dict[Group, JsonObject | None] = {}

    def add_members(self, group: Group, members: list[HeldMember]) -> None:
        if group in self._scores:
            self._take(group, members, self._scores.pop(group))
        else:
            self._members[group] = members

    def add_score(self, group: Group, line: JsonObject | None) -> None:
        if (members := self._members.pop(group, None)) is not None:
            self._take(group, members, line)
        else:
            self._scores[group] = line


def key_of_group(group: Group) -> str:
    """The key of a group in a buffer."""
    return ":".join(filter(None, (group.task_id, group.agent, group.scope)))


def sort_members(members: dict[Key, HeldMember]) -> list[HeldMember]:
    return [members[key] for key in sorted(members)]


def rewards_of(line: JsonObject, members: list[HeldMember]) -> list[float | None]:
    """What the line of a scored group gives its members."""
    of = {(one["scope"], one["rollout_index"]): one["reward"] for one in line["members"]}
    return [of.get(each.key[2:]) for each in members]


def make_group(
    key: str, members: list[HeldMember], rewards: list[float | None] | None, began: int | None
) -> BufferedGroup:
    """Where the model server tells no versions, that of the trainer at the group's begin counts."""
    lines, places = [each.line for each in members], [each.place for each in members if each.place]
    found = span_versions(versions_of(line["response"].get("output") or ()) for line in lines)
    first, last = (found.first, found.last) if found else (began, began)
    places = places if len(places) == len(lines) else []
    return BufferedGroup(key, lines, rewards or [], first, last, places)
