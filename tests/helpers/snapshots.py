"""Snapshots of runs that were never there."""

from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rollout_kit.collecting.live.snapshot import Cost, Snapshot

EMPTY: dict[Any, Any] = {int: 0, float: 0.0, bool: False, str: "", tuple: (), dict: {}}


def empty(kind: Any) -> Any:
    """A value of a declared class with nothing in it."""
    if isinstance(kind, UnionType):
        return None
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{each.name: empty(hints[each.name]) for each in fields(kind)})
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    return EMPTY[get_origin(kind) or kind]


def snapshot(**figures: Any) -> Snapshot:
    """A snapshot with some figures; those of its parts are given as a mapping."""
    made = {
        name: replace(getattr(NOTHING, name), **value)
        if is_dataclass(getattr(NOTHING, name)) and isinstance(value, dict)
        else value
        for name, value in figures.items()
    }
    return replace(NOTHING, **made)


def cost(**figures: Any) -> Cost:
    return replace(empty(Cost), **figures)


NOTHING: Snapshot = empty(Snapshot)
