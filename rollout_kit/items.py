"""Items of a conversation that notice when they are edited, in any part.

So what was encoded of them can be used again while they are as they were. They are dicts and lists
like others. Copies of them are plain, and notice nothing.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

SCALARS = frozenset({str, int, float, bool, type(None)})


class Edits:
    """The number of edits in the items of one conversation."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class Mark:
    """What all parts of an item share: whether one of them was edited, and who counts that."""

    __slots__ = ("edits", "is_edited")

    def __init__(self) -> None:
        self.edits: Edits | None = None
        self.is_edited = False

    def edit(self) -> None:
        # what is put in may be edited unnoticed later, so the item counts as edited for good
        self.is_edited = True
        if self.edits is not None:
            self.edits.number += 1


def _noticing(method: Callable[..., Any]) -> Any:
    @wraps(method)
    def noticed(self: Any, *args: Any, **named: Any) -> Any:
        self.mark.edit()
        return method(self, *args, **named)

    return noticed


class TrackedObject(dict[str, Any]):
    """An item, or an object in it."""

    __slots__ = ("mark",)
    mark: Mark

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)

    __setitem__ = _noticing(dict.__setitem__)
    __delitem__ = _noticing(dict.__delitem__)
    __ior__ = _noticing(dict.__ior__)
    clear = _noticing(dict.clear)
    pop = _noticing(dict.pop)
    popitem = _noticing(dict.popitem)
    setdefault = _noticing(dict.setdefault)
    update = _noticing(dict.update)


class TrackedList(list[Any]):
    """A list in an item."""

    __slots__ = ("mark",)
    mark: Mark

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (list(self),)

    __setitem__ = _noticing(list.__setitem__)
    __delitem__ = _noticing(list.__delitem__)
    __iadd__ = _noticing(list.__iadd__)
    __imul__ = _noticing(list.__imul__)
    append = _noticing(list.append)
    clear = _noticing(list.clear)
    extend = _noticing(list.extend)
    insert = _noticing(list.insert)
    pop = _noticing(list.pop)
    remove = _noticing(list.remove)
    reverse = _noticing(list.reverse)
    sort = _noticing(list.sort)


def track(item: Any) -> Any:
    """A copy of an item that notices edits; anything else as it is."""
    return _track_part(item, Mark()) if type(item) is dict else item


def _track_part(value: Any, mark: Mark) -> Any:
    kind = type(value)
    if kind is dict:
        found: Any = TrackedObject(value)
        for name, part in value.items():
            if type(part) not in SCALARS:
                dict.__setitem__(found, name, _track_part(part, mark))
    elif kind is list:
        found = TrackedList(value)
        for index, part in enumerate(value):
            if type(part) not in SCALARS:
                list.__setitem__(found, index, _track_part(part, mark))
    else:
        mark.is_edited = True  # a value of this kind may change unnoticed
        return value
    found.mark = mark
    return found


def is_as_it_was(item: Any, edits: Edits) -> bool:
    """Whether `edits` counts every edit of the item from now on, and it has none so far."""
    if type(item) is not TrackedObject or (mark := item.mark).is_edited:
        return False
    if mark.edits is None:
        mark.edits = edits
    return mark.edits is edits
