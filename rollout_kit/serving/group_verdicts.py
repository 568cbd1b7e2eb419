"""The scores of a group of rollouts: the request of `/verify_group`, its reply, and their checks.

A slot of the group is None if it has no rollout. A score of None means that the member cannot be
scored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, NotRequired, TypedDict

import orjson
from pydantic import BaseModel

from ..errors import TaskError, VerifyError, suggest
from ..types import LARGEST, JsonObject, given_fields, is_countable
from .rollout_verdicts import as_plain
from .transport.encoding import NotJson, encode, show
from .transport.wire import parse_leniently


class GroupMember(TypedDict):
    """A rollout as `verify_group` receives it."""

    arm: str
    """Id of its arm; empty without arms."""
    tags: JsonObject
    """Tags of its arm."""
    response: JsonObject
    verdict: JsonObject | None
    """`reward` and the other fields of its own verdict; None if it has none."""
    responses_create_params: NotRequired[JsonObject]
    """What its arm asked, if that differs from the task's."""


MEMBER_FIELDS = GroupMember.__required_keys__


class GroupRequest(NamedTuple):
    """`task` is the row; `members` are in the order of their slots."""

    task: JsonObject
    members: list[GroupMember | None]


@dataclass(slots=True)
class GroupMemberScore:
    """The group's reward of one member, and its parts, from which other weights can be tried."""

    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class GroupScores:
    """The reply: a score for each member in its slot, and figures of the whole group."""

    members: list[GroupMemberScore | None]
    group: JsonObject = field(default_factory=dict)


SCORE_KEYS = frozenset(each.name for each in fields(GroupMemberScore))
REPLY_KEYS = frozenset(each.name for each in fields(GroupScores))


def parse_group(raw: bytes) -> GroupRequest:
    """The request; TaskError if it is none. Responses are passed on unread."""
    found = parse_leniently(orjson.loads, raw)
    given = found if isinstance(found, dict) else {}
    task, members = given.get("task"), given.get("members")
    if not isinstance(task, dict) or not isinstance(members, list):
        raise TaskError("the body must be {task: {…}, members: [{response: {…}, …} or null, …]}")
    for slot, member in enumerate(members):
        if member is None:
            continue
        if not isinstance(member, dict) or not isinstance(member.get("response"), dict):
            raise TaskError(f"members[{slot}] must be null or an object with a 'response'")
        if not member.keys() >= MEMBER_FIELDS:
            for name, empty in (("arm", ""), ("tags", {}), ("verdict", None)):
                member.setdefault(name, empty)
    return GroupRequest(task, members)


def as_group_scores(found: Any, members: Sequence[Any]) -> GroupScores:
    """What `verify_group` returned for these members; VerifyError if it does not fit them.

    A list of rewards will do; so will a mapping with `members` and, if wanted, `group`.
    """
    if not isinstance(found, dict):
        found = _as_mapping(found)
    if isinstance(found, Mapping):
        if not found.keys() <= REPLY_KEYS:
            raise _unknown(found, REPLY_KEYS, "", "figures belong into 'group'")
        scores, group = found.get("members"), found.get("group") or {}
    else:
        scores, group = found, {}
    if not isinstance(scores, Sequence) or isinstance(scores, str | bytes):
        raise _misfit(f"returned {type(found).__name__}, not one score for each member")
    if len(scores) != len(members):
        raise _misfit(f"returned {len(scores)} scores for {len(members)} members")
    if not isinstance(group, Mapping):
        raise _misfit(f"returned {type(group).__name__} as figures of the group, not a mapping")
    scored = GroupScores(
        [
            None if score is None else _score(slot, score, members[slot] is None)
            for slot, score in enumerate(scores)
        ],
        {str(name): _figure(name, value) for name, value in group.items()},
    )
    try:
        encode(scored.group)
    except NotJson as error:
        raise _misfit(f"returned figures of the group that are no JSON: {error}") from None
    return scored


def _as_mapping(found: Any) -> Any:
    """The fields of an object that has some."""
    if isinstance(found, GroupScores | GroupMemberScore):
        return {each.name: getattr(found, each.name) for each in fields(found)}
    return given_fields(found) if isinstance(found, BaseModel) else found


def _score(slot: int, found: Any, is_empty: bool) -> GroupMemberScore:
    if is_empty:
        raise _misfit(f"scored slot {slot}, which is empty")
    if type(found) is not dict:
        is_model, found = isinstance(found, BaseModel), _as_mapping(found)
        found = found if isinstance(found, Mapping) else {"reward": found}
        found = {"reward": None, **found} if is_model else found
    if not SCORE_KEYS.issuperset(found):
        where = f" in members[{slot}]"
        raise _unknown(found, SCORE_KEYS, where, "its parts belong into 'components'")
    if "reward" not in found:
        raise _misfit(f"returned members[{slot}] without 'reward', which may be None")
    reward, components = found["reward"], found.get("components") or {}
    if type(components) is not dict and not isinstance(components, Mapping):
        raise _misfit(f"returned members[{slot}].components={show(components)}, not a mapping")
    if reward is not None and (type(reward) is not float or not -LARGEST <= reward <= LARGEST):
        reward = _number(reward, "members", slot, "reward")
    for name, value in components.items():
        if type(value) is not float or not -LARGEST <= value <= LARGEST:
            components = {**components, name: _number(value, "members", slot, "components", name)}
    return GroupMemberScore(reward, components)


def _unknown(found: Mapping[Any, Any], known: frozenset[str], where: str, hint: str) -> VerifyError:
    """The error for a key that would be lost."""
    name = next(str(each) for each in found if each not in known)
    return _misfit(f"returned the unknown key '{name}'{where}{suggest(name, known)}: {hint}")


def _figure(name: str, value: Any) -> Any:
    value = as_plain(value)
    return _number(value, "group", name) if isinstance(value, float) else value


def _number(value: Any, *path: str | int) -> float:
    value = as_plain(value)
    if is_countable(value):
        return float(value)
    name = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    raise _misfit(f"returned {name[1:]}={show(value)}, not a finite number of at most {LARGEST:g}")


def _misfit(what: str) -> VerifyError:
    return VerifyError(f"verify_group {what}", retryable=False)
