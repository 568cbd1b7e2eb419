"""Where the items of a line's output stand, without reading what is in them."""

import re
from typing import Any, NamedTuple

NAME = re.compile(rb'"(?:[^"\\]|\\.)*"')
BETWEEN = b" \t\r\n,:"
PIECE = 1 << 16


class ItemSpan(NamedTuple):
    """Bytes of a line from `begin` up to, and without, `end`."""

    begin: int
    end: int


def find_places(raw: bytes) -> list[ItemSpan] | None:
    """The items of `response.output`; None for a line that has none, or an unusual form."""
    from msgspec import DecodeError, Raw, json

    try:
        fields = json.decode(raw, type=dict[str, Raw])
        response = json.decode(fields["response"], type=dict[str, Raw])
        items = json.decode(response["output"], type=list[Raw])
    except (DecodeError, KeyError):
        return None
    where = _find_value(raw, 0, fields, "response")
    where = where and _find_value(raw, where.begin, response, "output")
    if not where or not items or raw[where.begin : where.begin + 1] != b"[":
        return None
    found, at = [], where.begin + 1
    for item in items:
        at = _skip(raw, at)
        found.append(ItemSpan(at, at := at + len(memoryview(item))))
    return found if raw[_skip(raw, at) : _skip(raw, at) + 1] == b"]" else None


def _find_value(raw: bytes, begin: int, fields: dict[str, Any], name: str) -> ItemSpan | None:
    """Where a field of the object that begins at `begin` stands."""
    at = _skip(raw, begin) + 1
    for key, value in fields.items():
        if (written := NAME.match(raw, _skip(raw, at))) is None:
            return None
        at, content = _skip(raw, written.end()), memoryview(value)
        end = at + len(content)
        if key == name:  # of a name that stands twice, the last value counts
            return ItemSpan(at, end) if _is_same(memoryview(raw)[at:end], content) else None
        at = end
    return None


def _is_same(one: memoryview, other: memoryview) -> bool:
    """Compared as bytes, which takes a tenth of the time, and in pieces, which takes no memory."""
    return len(one) == len(other) and all(
        bytes(one[at : at + PIECE]) == bytes(other[at : at + PIECE])
        for at in range(0, len(one), PIECE)
    )


def _skip(raw: bytes, at: int) -> int:
    while raw[at : at + 1] and raw[at] in BETWEEN:
        at += 1
    return at
