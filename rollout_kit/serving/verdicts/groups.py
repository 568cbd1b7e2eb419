"""The scores of a group of rollouts: the request of `/verify_group`, its reply, and their checks.

A slot of the group is None if it has no rollout. A score of None means that the member cannot be
scored.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

import orjson
from pydantic import BaseModel, Field

from ...errors import TaskError, VerifyError
from ...transport.wire import parse_leniently
from ...types import JsonObject, Wire, given_fields
from .rollouts import as_plain


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


class GroupRequest(NamedTuple):
    """`task` is the row; `members` are in the order of their slots."""

    task: JsonObject
    members: list[GroupMember | None]


class GroupMemberScore(Wire):
    """The group's reward of one member, and its parts, from which other weights can be tried."""

    reward: float | None = None
    components: dict[str, float] = Field(default_factory=dict)


class GroupScores(Wire):
    """The reply: a score for each member in its slot, and figures of the whole group."""

    members: list[GroupMemberScore | None]
    group: JsonObject = Field(default_factory=dict)


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
        for name, empty in (("arm", ""), ("tags", {}), ("verdict", None)):
            member.setdefault(name, empty)
    return GroupRequest(task, members)


def as_group_scores(found: Any, members: Sequence[Any]) -> GroupScores:
    """What `verify_group` returned for these members; VerifyError if it does not fit them.

    A list of rewards will do; so will a mapping with `members` and, if wanted, `group`.
    """
    if isinstance(found, BaseModel):
        found = given_fields(found)
    if isinstance(found, Mapping):
        scores, group = found.get("members"), found.get("group") or {}
    else:
        scores, group = found, {}
    if not isinstance(scores, Sequence) or isinstance(scores, str | bytes):
        raise _misfit(f"returned {type(found).__name__}, not one score for each member")
    if len(scores) != len(members):
        raise _misfit(f"returned {len(scores)} scores for {len(members)} members")
    if not isinstance(group, Mapping):
        raise _misfit(f"returned {type(group).__name__} as figures of the group, not a mapping")
    return GroupScores.model_construct(
        members=[
            _score(slot, score, member is None)
            for slot, (score, member) in enumerate(zip(scores, members, strict=True))
        ],
        group={str(name): _figure(f"group.{name}", value) for name, value in group.items()},
    )


def _score(slot: int, found: Any, is_empty: bool) -> GroupMemberScore | None:
    if found is None:
        return None
    if is_empty:
        raise _misfit(f"scored slot {slot}, which is empty")
    if isinstance(found, BaseModel):
        found = given_fields(found)
    given = found if isinstance(found, Mapping) else {"reward": found}
    where = f"members[{slot}]"
    reward, components = given.get("reward"), given.get("components") or {}
    if not isinstance(components, Mapping):
        raise _misfit(f"returned {where}.components={components!r:.60}, not a mapping")
    return GroupMemberScore.model_construct(
        reward=None if reward is None else _number(f"{where}.reward", reward),
        components={
            str(name): _number(f"{where}.components.{name}", value)
            for name, value in components.items()
        },
    )


def _figure(name: str, value: Any) -> Any:
    value = as_plain(value)
    return _number(name, value) if isinstance(value, float) else value


def _number(name: str, value: Any) -> float:
    value = as_plain(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise _misfit(f"returned {name}={value!r:.60}, not a finite number")


def _misfit(what: str) -> VerifyError:
    return VerifyError(f"verify_group {what}", retryable=False)
