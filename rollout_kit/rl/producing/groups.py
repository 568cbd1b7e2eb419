"""Groups of a collection as a buffer holds them."""

from ...store.groups.members import HeldMember
from ...store.scope import Group
from ...trajectory import span_versions, versions_of
from ...types import JsonObject
from ..buffer.group import BufferedGroup


def key_of_group(group: Group) -> str:
    """The key of a group in a buffer."""
    return ":".join(filter(None, (group.task_id, group.agent, group.scope)))


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
