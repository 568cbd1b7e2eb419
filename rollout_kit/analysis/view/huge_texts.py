"""JSON with texts of many megabytes, of which no text is ever in memory as a whole: the beginning
and the end when a value is read, and a part of it when that is asked for."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from .cuts import HEAD, MAX_TEXT, TAIL, CutText, is_image_result

HUGE = 4 << 20
"""Bytes of a value from which on its texts are read in pieces."""

PIECE = 1 << 17
"""Bytes of a text that are decoded at a time. The decoder reserves twelve times as many."""

IMAGE = b'"data:image/'

Piece = bytes | memoryview


def parse_in_pieces(raw: Piece) -> Any:
    """The value, whose huge texts are CutText."""
    if len(raw) < HUGE:
        return orjson.loads(raw)
    match bytes(raw[:1]):
        case b"{":
            fields = _split_object(raw)
            kind = parse_in_pieces(fields.get("type", b"null"))
            return {
                name: orjson.loads(each) if is_image_result(kind, name) else parse_in_pieces(each)
                for name, each in fields.items()
            }
        case b"[":
            return [parse_in_pieces(each) for each in _split_list(raw)]
        case b'"' if bytes(raw[: len(IMAGE)]) != IMAGE:
            return _cut(raw)
        case _:
            return orjson.loads(raw)


def find_text(raw: Piece, path: Sequence[Any]) -> Piece:
    """The JSON of the text at a path of names and numbers; LookupError or TypeError if there is
    none."""
    from msgspec import DecodeError

    try:
        for name in path:
            raw = _split_list(raw)[name] if bytes(raw[:1]) == b"[" else _split_object(raw)[name]
    except DecodeError:
        raise TypeError("neither a list nor an object") from None
    if bytes(raw[:1]) != b'"':
        raise TypeError("no text")
    return raw


def read_pieces(raw: Piece) -> Iterator[str]:
    """The JSON of a text, decoded piece by piece."""
    at, end = 1, len(raw) - 1
    while at < end:
        behind = _find_end(raw, at, min(at + PIECE, end), end)
        yield orjson.loads(b'"%b"' % bytes(raw[at:behind]))
        at = behind


def _find_end(raw: Piece, begin: int, at: int, end: int) -> int:
    """The first place from `at` on, near it, that is in no character of UTF-8 and in no escape.
    `begin` is such a place before it."""
    while at < end and raw[at] & 0xC0 == 0x80:
        at += 1
    near = bytes(raw[max(begin, at - 6) : at])
    escape = near.rfind(b"\\")
    if at >= end or escape < 0:
        return at
    escape += at - len(near)
    first = escape
    while first > begin and raw[first - 1] == 0x5C:
        first -= 1
    if (escape - first) % 2:  # the second of a pair
        return at
    behind = escape + (6 if raw[escape + 1] == 0x75 else 2)
    if behind <= at and not _is_high(raw, escape):
        return at
    return min(end, behind + (6 if _is_high(raw, escape) else 0))


def _is_high(raw: Piece, escape: int) -> bool:
    """Whether an escape is the first half of a character."""
    return bytes(raw[escape + 1 : escape + 3]).lower() == b"ud" and bytes(
        raw[escape + 3 : escape + 4]
    ).lower() in (b"8", b"9", b"a", b"b")


def _cut(raw: Piece) -> str:
    first = last = ""
    length = 0
    for piece in read_pieces(raw):
        length += len(piece)
        if len(first) < HEAD:
            first += piece
        last = (last + piece)[-TAIL:]
    return CutText.of(first, last, length) if length > MAX_TEXT else orjson.loads(raw)


def _split_object(raw: Piece) -> dict[str, Piece]:
    from msgspec import Raw, json

    return {name: memoryview(each) for name, each in json.decode(raw, type=dict[str, Raw]).items()}


def _split_list(raw: Piece) -> list[Piece]:
    from msgspec import Raw, json

    return [memoryview(each) for each in json.decode(raw, type=list[Raw])]
