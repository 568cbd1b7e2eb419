"""Writes replies and requests as JSON. What cannot be written is described in one sentence: its
place in the value, its type, and the rule that it breaks.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import to_json

from ...errors import RolloutError, VerifyError
from ...types import VerifyRequest, VerifyResponse, given_fields

LEVELS = 250
"""Levels of a value that every encoder writes."""

QUOTED = 60
"""Characters of a place, and of a value, that an error quotes."""

SURROGATE = re.compile("[\ud800-\udfff]")

VERDICTS = ("/verify", "/verify_group")

Write = Callable[[Any], object]
"""Writes a value as JSON; TypeError or ValueError if that is not possible."""


class NotJson(TypeError):
    """A value cannot be written as JSON; the message says what of it, where, and why."""

    def refuse(self, server: str, path: str) -> RolloutError:
        """The error of a server whose reply it was. Another attempt would get the same."""
        kind = VerifyError if path in VERDICTS else RolloutError
        return kind(f"{path} returned {self}", server=server, retryable=False)


def encode(value: Any) -> bytes:
    """A reply or request as JSON bytes; text stays text. NotJson if that is not possible."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(describe_flaw(value, error)) from error


def encode_reply(reply: Any, server: str, path: str) -> bytes:
    """The reply of a server as JSON bytes; its error if that is not possible."""
    try:
        return encode(reply)
    except NotJson as error:
        raise error.refuse(server, path) from error


def _encode(value: Any) -> bytes:
    if type(value) is dict:
        return write(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if type(value) is VerifyResponse:
        with suppress(TypeError):  # pydantic knows types that orjson does not, such as set
            return write(given_fields(value))
    if isinstance(value, BaseModel):
        # a verify response repeats the row: fields that were not set must not appear as null
        return value.model_dump_json(exclude_unset=isinstance(value, VerifyRequest)).encode()
    return write(value)


def write(value: Any) -> bytes:
    """JSON bytes; models may be anywhere in the value. TypeError for other types."""
    return orjson.dumps(value, default=_as_json)


def _as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def describe_flaw(value: Any, error: Exception) -> str:
    """What of a value cannot be written, where and why. `error` is that of the encoder."""
    with suppress(RecursionError):
        if (flaw := _find_flaw(value, write, "", ())) is not None:
            return flaw
    return f"a value of type {type(value).__name__} that is no JSON: {error}"


def _find_flaw(value: Any, writes: Write, place: str, around: tuple[int, ...]) -> str | None:
    """`around` are the ids of the values that this one is in."""
    if isinstance(value, str):
        return _find_surrogate(value, f"{_cut(place)}=" * bool(place))
    if isinstance(value, BaseModel):
        writes = to_json
    if (parts := _parts(value, writes)) is None:
        return None if _can(writes, value) else f"{_name(place, value)}, {_rule(value)}"
    if id(value) in around:
        return f"{_cut(place)}, which contains itself"
    if len(around) >= LEVELS:
        return f"{_cut(place)}, which is nested more than {LEVELS} levels deep"
    is_object = not isinstance(value, list | tuple | set | frozenset)
    for name, part in parts:
        if is_object and (flaw := _find_odd_key(name, writes, place)) is not None:
            return flaw
        if (flaw := _find_flaw(part, writes, _join(place, name), (*around, id(value)))) is not None:
            return flaw
    return None


def _parts(value: Any, writes: Write) -> Iterable[tuple[Any, Any]] | None:
    """(name or index, part) of a value that has parts; None for others."""
    if isinstance(value, BaseModel):
        return given_fields(value).items()
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value) and not isinstance(value, type):
        return vars(value).items()
    if isinstance(value, set | frozenset):
        return enumerate(value) if _can(writes, set()) else None
    return enumerate(value) if isinstance(value, list | tuple) else None


def _can(writes: Write, value: Any) -> bool:
    try:
        writes(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _find_surrogate(text: str, before: str) -> str | None:
    if (found := SURROGATE.search(text)) is None:
        return None
    what = f"U+{ord(found[0]):04X} at character {found.start()}"
    return f"{before}{show(text)}, a text with the lone surrogate {what}"


def _find_odd_key(name: Any, writes: Write, place: str) -> str | None:
    where = f"{_cut(place) or 'an object'} with the key "
    if isinstance(name, str):
        return _find_surrogate(name, where)
    return None if place and _can(writes, {name: 0}) else f"{where}{show(name)}, which is no text"


def _rule(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return "bytes that are no UTF-8 text"
    return f"of type {type(value).__name__}, which JSON does not have"


def _join(place: str, name: Any) -> str:
    if isinstance(name, str) and name.isidentifier():
        return f"{place}.{name}" if place else name
    return f"{place}[{show(name)}]"


def _name(place: str, value: Any) -> str:
    return f"{_cut(place)}={show(value)}" if place else show(value)


def _cut(place: str) -> str:
    return place if len(place) <= QUOTED else f"{place[:QUOTED]}…"


def show(value: Any) -> str:
    """A value as an error quotes it, even if its `repr` fails."""
    try:
        shown = repr(value)
    except Exception:  # that of a user's class may raise anything
        shown = f"<{type(value).__name__}>"
    if len(shown) > QUOTED:
        shown = f"{shown[:QUOTED]}…"
    return shown.encode("utf-8", "backslashreplace").decode()
