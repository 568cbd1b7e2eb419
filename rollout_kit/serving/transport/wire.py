"""Conversion between JSON bytes and objects, and the definition of routes."""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from ...errors import TaskError
from ...responses import is_too_deep
from ...session import note_repair
from ...time_limit import Extendable, extend_all
from ...types import METADATA, MISSING, JsonObject, VerifyResponse
from .connection import Headers
from .encoding import encode, write
from .http import Reply

RESERVED = frozenset(
    {
        "seed_session",
        "verify",
        "verify_group",
        "close_session",
        "tools",
        "user",
        "health",
        "load",
        "mcp",
        "openenv",
        "run",
        "run_program",
        "pack_files",
        "aggregate_metrics",
    }
)
"""Paths of servers that no tool may have as its name: the policy may call every tool."""

DEEPEST = 100
"""Levels of JSON that a mended value keeps; parsers and encoders refuse about 200."""

LONGEST_INTEGER = 20
"""Digits from which an integer is read as a float: JSON encoders take 64 bits."""

LARGEST_MENDED = 16 << 20
"""Bytes; mending takes a fifth of a second for each million."""

LARGE = 8 << 20
"""Bytes of JSON of which a copy would take much memory."""

JSON_START = re.compile(rb'(?:\xef\xbb\xbf)?\s*[\[{"\-\dtfnNI]')

BYTE_ORDER_MARK = "\ufeff"
BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.DOTALL)

T = TypeVar("T")


EVENT_END = b"\n\n"
"""Ends an event of a stream; JSON on one line does not contain it."""


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    method: str
    handler: str
    parse: Callable[[bytes], Any]
    takes_body: bool = True


RECEIVED = frozenset({"responses_create_params", "response"})
"""Fields of a verdict that are always the request's."""


class Answers(Protocol):
    """A server as a transport sees it."""

    name: str
    takes_pieces: bool
    """Whether a request of this process may be `SplitRequest`, in place of bytes."""

    async def answer(self, path: str, raw: bytes) -> Any:
        """The reply to one request; RolloutError if it fails."""
        ...

    async def answer_client(self, path: str, raw: bytes) -> Any:
        """The same for a client without a session."""
        ...

    def reply_headers(self, reply: Any) -> Mapping[str, str]:
        """Headers of a reply over HTTP."""
        ...

    def describe(self) -> JsonObject:
        """What other processes need to know about the server."""
        ...

    def load_figures(self) -> JsonObject:
        """How busy the server is."""
        ...


class EventStream(bytes):
    """A reply that is sent as an event stream; it holds all events."""

    @classmethod
    def of(cls, events: Iterable[bytes]) -> "EventStream":
        return cls(b"".join(events))


def read_scores(request: JsonObject, reply: Any) -> JsonObject:
    """What the verifier set: the fields of its reply that the request does not have, or has with
    another value. TypeError or ValueError if the reply is not a JSON object.

    A verdict of this process says which fields those are; nothing else of it is copied. A reply
    over HTTP cannot say it, as servers of other kinds echo the whole row.
    """
    scores = reply.scores() if isinstance(reply, VerifyResponse) else None
    if scores is not None:
        try:
            scores = orjson.loads(write(scores))
        except TypeError:  # a value that only pydantic can encode
            pass
        else:
            return scores_of(request, scores)
    return scores_of(request, decode(reply if isinstance(reply, bytes) else encode(reply), dict))


def scores_of(request: Mapping[str, Any], verdict: Mapping[str, Any]) -> JsonObject:
    """What the verifier set: fields that the request does not have, or has with another value."""
    found = {
        name: value
        for name, value in verdict.items()
        if name not in RECEIVED and request.get(name, MISSING) != value
    }
    if found and isinstance(inner := request.get(METADATA), dict):
        return {name: value for name, value in found.items() if inner.get(name, MISSING) != value}
    return found


def decode(raw: bytes, wanted: Any) -> Any:
    """JSON bytes as `wanted`: `str` (the plain text), `dict`, `list`, or a pydantic model."""
    if wanted is str:
        return raw.decode("utf-8", "replace")
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return parse_leniently(wanted.model_validate_json, raw)
    value = read_json(raw)
    if not isinstance(value, wanted):
        raise TypeError(f"expected a JSON {wanted.__name__}, got {type(value).__name__}")
    return value


def canonical_request(request: JsonObject) -> bytes:
    """The same bytes for equal requests to a model: keys sorted, and items without their ids, which
    agents generate at random."""
    items = request.get("input")
    if isinstance(items, list):
        request = {**request, "input": bare_items(items)}
    return orjson.dumps(request, option=orjson.OPT_SORT_KEYS)


def bare_items(items: list[Any]) -> list[Any]:
    """The items without their ids, which agents generate at random."""
    return [
        {name: value for name, value in item.items() if name != "id"}
        if isinstance(item, dict) and "id" in item
        else item
        for item in items
    ]


def request_parser(annotation: Any) -> Callable[[bytes], Any]:
    """A function from JSON bytes to a handler's argument; it raises if the bytes do not fit."""
    if annotation in (JsonObject, dict, Any, inspect.Parameter.empty):
        return parse_object
    validate = TypeAdapter(annotation).validate_json

    def parse(raw: bytes) -> Any:
        return parse_leniently(validate, raw or b"{}")

    return parse


def parse_leniently(parse: Callable[[bytes], T], raw: bytes) -> T:
    """`parse(raw)`. Bytes that a strict parser refuses are mended first: what a model wrote may
    hold lone surrogates, invalid UTF-8, control characters, NaN, or any number of levels. Only such
    requests cost more time."""
    try:
        return parse(raw)
    except ValueError as error:
        is_json = isinstance(error, ValidationError) and error.errors()[0]["type"] != "json_invalid"
        mended = None if is_json else mend(raw)
        if mended is None:
            raise
    return parse(mended)


def read_json(raw: bytes) -> Any:
    """The JSON value of a reply; ValueError if it is not JSON in any sense.

    A reply was paid for: where strict JSON is not possible it is mended, and the session notes what
    was changed.
    """
    try:
        value = parse_json(raw)
    except orjson.JSONDecodeError:
        if (mended := mend(raw, note_repair)) is None:
            raise
    else:
        if not is_too_deep(raw, value) or (mended := mend(raw, note_repair)) is None:
            return value
    return orjson.loads(mended)


def parse_json(raw: bytes) -> Any:
    """As `orjson.loads`, which copies the bytes first: large ones are parsed without a copy."""
    if len(raw) > LARGE:
        with suppress(ValueError, RecursionError, msgspec.MsgspecError):
            value = msgspec.json.decode(raw)
            if not _has_long_integer(value):
                return value
    return orjson.loads(raw)


def _has_long_integer(value: Any) -> bool:
    """Whether there is an integer that orjson would have read as a float."""
    if isinstance(value, dict | list):
        return any(map(_has_long_integer, value.values() if isinstance(value, dict) else value))
    return type(value) is int and not -(1 << 63) <= value < 1 << 64


def mend(raw: bytes, note: Callable[[str], object] = str) -> bytes | None:
    """The same value as strict JSON; None if the bytes are not JSON in any sense. `note` receives
    each kind of change.

    Numbers that are not finite or too long become null, and values that are nested too deeply
    become their JSON text.
    """
    if len(raw) > LARGEST_MENDED or not JSON_START.match(raw):
        return None
    found: dict[str, None] = {}

    def read_number(digits: str) -> float | None:
        if math.isfinite(number := float(digits)):
            return number
        return found.setdefault("number that is not finite → null")

    def read_integer(digits: str) -> int | float | None:
        return int(digits) if len(digits) < LONGEST_INTEGER else read_number(digits)

    flat = _cut_deep(raw)
    if flat != raw:
        found[f"more than {DEEPEST} levels → text"] = None
    text = flat.decode("utf-8", "replace")
    if text[0] == BYTE_ORDER_MARK:
        found["byte order mark → left out"] = None
        text = text[1:]
    if "\ufffd" in text and not flat.endswith(text.encode()):
        found["invalid UTF-8 → U+FFFD"] = None
    try:
        value = json.loads(
            text,
            strict=False,
            parse_int=read_integer,
            parse_float=read_number,
            parse_constant=read_number,
        )
    except ValueError:
        return None
    text = json.dumps(value, ensure_ascii=False)
    strict = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if strict != text:
        found["lone surrogate → U+FFFD"] = None
    for each in found or ["control character in a text"]:
        note(each)
    return strict.encode()


def _cut_deep(raw: bytes) -> bytes:
    """`raw` with its JSON text in place of a value that is nested too deeply."""
    parts: list[bytes] = []
    end = start = depth = 0
    for found in BRACKET.finditer(raw):
        run = found[0]
        if run[0] in b"[{":
            if depth <= DEEPEST < depth + len(run):
                start = found.start() + DEEPEST - depth
            depth += len(run)
        elif run[0] in b"]}":
            if depth - len(run) <= DEEPEST < depth:
                after = found.start() + depth - DEEPEST
                deep = raw[start:after].decode("utf-8", "replace")
                parts += [raw[end:start], json.dumps(deep).encode()]
                end = after
            depth -= len(run)
    return b"".join(parts) + raw[end:]


def parse_object(raw: bytes) -> JsonObject:
    try:
        value = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise TaskError(f"the body is not JSON: {error}", status=400) from None
    if not isinstance(value, dict):
        raise TaskError(f"the body must be a JSON object, got {type(value).__name__}", status=400)
    return value


class TurnReader:
    """Passes the turns of a stream on as they arrive; `reply` is set at its end. `limits` are
    extended when the stream says so."""

    def __init__(
        self, report: Callable[[JsonObject], Any], limits: Iterable[Extendable] = ()
    ) -> None:
        self.reply: Reply | None = None
        self._report, self._limits = report, limits
        self._begun: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        self._begun.append(piece)
        if piece[-1:] != b"\n":  # JSON on one line has none
            return
        self._begun = [raw := b"".join(self._begun)]
        if not raw.endswith(EVENT_END):
            return
        self._begun.clear()
        for event in raw.split(EVENT_END)[:-1]:
            with suppress(orjson.JSONDecodeError):  # a reply that cannot be read is an error later
                self._take(orjson.loads(event.removeprefix(b"data: ")))

    def _take(self, event: JsonObject) -> None:
        if (turn := event.get("turn")) is not None:
            self._report(turn)
        elif (seconds := event.get("held_s")) is not None:
            extend_all(self._limits, seconds)
        else:
            pairs = [(name.encode(), value.encode()) for name, value in event["headers"]]
            self.reply = Reply(event["status"], Headers(pairs), orjson.dumps(event["reply"]))
