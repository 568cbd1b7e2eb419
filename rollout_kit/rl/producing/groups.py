"""Groups of a collection as a buffer holds them."""

from ...store.groups.members import HeldMember
from ...store.groups.scope import Group
from ...trajectory import span_versions, versions_of
from ...types import JsonObject, Key
from ..buffer.group import BufferedGroup


def key_of_group(group: Group) -> str:
    """The key of a group in a buffer."""
    return ":".join(filter(None, (group.task_id, group.agent, group.scope)))


def sort_members(members: dict[Key, HeldMember]) -> list[HeldMember]:
    return [members[key] for key in sorted(members)]


def place_of(line: JsonObject) -> tuple[str, int]:
    block = line["rollout"]
    return block.get("scope") or "", block["rollout_index"]


def make_group(
    key: str, members: list[HeldMember], rewards: list[float | None] | None, began: int | None
) -> BufferedGroup:
    """Where the model server tells no versions, that of the trainer at the group's begin counts."""
    lines, places = [each.line for each in members], [each.place for each in members if each.place]
    found = span_versions(versions_of(line["response"].get("output") or ()) for line in lines)
    first, last = (found.first, found.last) if found else (began, began)
    places = places if len(places) == len(lines) else []
    return BufferedGroup(key, lines, rewards or [], first, last, places)
