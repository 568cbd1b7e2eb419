"""The answer in a stream of server-sent events, of each API.

An answer is whole only after the event that ends it; a part of an answer is never returned.
"""

from collections.abc import Callable
from typing import Any

import orjson

from ...responses import Item
from ...types import JsonObject
from ..transport.wire import read_json

ENDS = ("response.completed", "response.incomplete", "response.failed")
"""Last events, which carry the whole response."""

ADDED_UP = ("content", "refusal")
"""Lists of log-probs that arrive in pieces."""

GROWING = ("text", "summary", "thinking", "data")
"""Fields of a list's entry whose texts arrive in pieces. Other fields have their latest value."""


class Assembly:
    """Assembles an answer from its events: `feed` takes the pieces of the body, `whole` returns the
    answer. `heard` is called for each piece."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        self.has_begun = False
        self._heard = heard
        self._rest = b""
        self._data: list[bytes] = []
        self._event = b""
        self._is_spoilt = self._is_done = False
        self._whole: JsonObject | None = None

    def feed(self, piece: bytes) -> None:
        """Take a piece. Never raises; an invalid piece makes the whole answer invalid."""
        self.has_begun = True
        self._heard()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._read_line(line.rstrip(b"\r"))

    def whole(self, *, is_broken: bool = False) -> JsonObject | None:
        """The answer after the last piece, in the form without streaming, or an `error`; None if
        the stream is not complete. `is_broken`: the connection was lost."""
        if self._rest or self._data:  # the last event of some endpoints has no end
            rest, self._rest, was_spoilt = self._rest, b"", self._is_spoilt
            self._read_line(rest.rstrip(b"\r"))
            self._read_line(b"")
            self._is_spoilt = was_spoilt  # a piece of an event is none
        return None if self._is_spoilt else self._whole

    def _read_line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].strip())
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()
        elif not line:
            data, self._data = b"\n".join(self._data), []
            if data:
                self._read(data)
            self._event = b""

    def _read(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            event = read_json(data)
            if error := event.get("error"):
                self._whole = {"error": error}
            elif self._event == b"error" and "type" not in event:
                self._whole = {"error": event}
            else:
                self._take(event)
        except (ValueError, TypeError, LookupError, AttributeError):
            if self._event == b"error":
                self._whole = {"error": {"message": data.decode("utf-8", "replace")}}
            else:
                self._is_spoilt = True

    def _take(self, event: JsonObject) -> None:
        raise NotImplementedError


class ResponseAssembly(Assembly):
    """Assembles a response."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        super().__init__(heard)
        self._items: dict[int, Item] = {}

    def _take(self, event: JsonObject) -> None:
        kind = event.get("type")
        if kind == "response.output_item.done":
            self._items[event["output_index"]] = event["item"]
        elif kind in ENDS:
            # some gateways leave out of the last event what they have sent before
            output = event["response"].get("output") or [
                self._items[index] for index in sorted(self._items)
            ]
            self._whole = {**event["response"], "output": output}
        elif kind == "error":
            self._whole = {"error": event}


class CompletionAssembly(Assembly):
    """Assembles a chat completion from its chunks. It is whole with a finish reason and the end of
    the stream: some endpoints send neither usage nor [DONE] after it."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        super().__init__(heard)
        self._head: JsonObject = {}
        self._message: JsonObject = {"role": "assistant", "content": None}
        self._calls: list[JsonObject] = []
        self._at: dict[Any, JsonObject] = {}
        """Index → the latest call that has it."""
        self._choice: JsonObject = {"index": 0}

    def whole(self, *, is_broken: bool = False) -> JsonObject | None:
        found = super().whole()
        is_over = not is_broken or self._is_done or "usage" in self._head
        is_over = is_over and ("finish_reason" in self._choice or "error" in self._choice)
        if found is not None or self._is_spoilt or not is_over:
            return found
        calls = {"tool_calls": self._calls} if self._calls else {}
        choice = {**self._choice, "message": _join({**self._message, **calls})}
        return {**self._head, "object": "chat.completion", "choices": [choice]}

    def _take(self, event: JsonObject) -> None:
        self._head |= {
            key: value for key, value in event.items() if key != "choices" and value is not None
        }
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                self._add(choice)

    def _add(self, choice: JsonObject) -> None:
        for field, piece in (choice.get("delta") or {}).items():
            if field == "tool_calls":
                for call in piece or ():
                    self._add_call(call)
            elif field == "function_call" and piece:
                self._add_call({"function": piece})
            elif field != "role" and piece is not None:
                _grow(self._message, field, piece)
        for name in ("finish_reason", "stop_reason", "error"):
            if reason := choice.get(name):
                self._choice[name] = reason
        if ids := choice.get("token_ids"):
            self._choice.setdefault("token_ids", []).extend(ids)
        for field, listed in (choice.get("logprobs") or {}).items():
            if field in ADDED_UP and listed:
                logprobs = self._choice.setdefault("logprobs", {})
                logprobs.setdefault(field, []).extend(listed)

    def _add_call(self, piece: JsonObject) -> None:
        told = piece.get("function") or {}
        index = piece.get("index")
        known = self._at.get(index) if index is not None else self._latest(piece, told)
        if known is None or _is_another(known, piece, told):
            known = {"id": piece.get("id"), "type": "function", "function": {"name": None}}
            known["function"]["arguments"] = ""
            self._calls.append(known)
        self._at[index] = known
        function = known["function"]
        for name, value in told.items():
            if name == "arguments":
                _add_arguments(function, value)
            elif name == "name":
                function["name"] = _join_name(function["name"], value)
            elif value is not None:
                _grow(function, name, value)
        known["id"] = known["id"] or piece.get("id")
        for name, value in piece.items():
            if name not in ("id", "index", "type", "function") and value is not None:
                _grow(known, name, value)

    def _latest(self, piece: JsonObject, told: JsonObject) -> JsonObject | None:
        """The call that a fragment without an index belongs to; None if it begins one."""
        call_id = piece.get("id")
        same = (call for call in self._calls if call_id and call["id"] == call_id)
        if call_id and told.get("name"):
            return next(same, None)
        return next(same, self._calls[-1] if self._calls else None)


class MessageAssembly(Assembly):
    """Assembles a message of Anthropic's API. It is whole with its stop reason and the end of the
    stream."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        super().__init__(heard)
        self._message: JsonObject = {}
        self._blocks: dict[int, JsonObject] = {}
        self._arguments: dict[int, JsonObject] = {}
        """Index of a block → the JSON of its input so far."""
        self._has_stopped = False

    def whole(self, *, is_broken: bool = False) -> JsonObject | None:
        found = super().whole()
        is_over = self._has_stopped or (not is_broken and self._message.get("stop_reason"))
        if found is not None or self._is_spoilt or not is_over:
            return found
        for index, given in self._arguments.items():
            text = _join(given["json"]) or "{}"
            self._blocks[index]["input"] = orjson.loads(text) if _is_json(text) else text
        content = [_join(self._blocks[index]) for index in sorted(self._blocks)]
        return {**self._message, "content": content}

    def _take(self, event: JsonObject) -> None:
        match event.get("type"):
            case "message_start":
                self._message = dict(event["message"])
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                self._add(event["index"], event["delta"])
            case "message_delta":
                self._message |= event["delta"]
                known = self._message.get("usage") or {}
                counts = event.get("usage") or {}
                told = {name: value for name, value in counts.items() if value is not None}
                self._message["usage"] = {**known, **told}
            case "message_stop":
                self._has_stopped = True

    def _add(self, index: int, delta: JsonObject) -> None:
        block = self._blocks[index]
        for name, piece in delta.items():
            if name == "partial_json":
                _append(self._arguments.setdefault(index, {"json": ""}), "json", piece)
            elif name == "citation":
                block["citations"] = [*(block.get("citations") or ()), piece]
            elif isinstance(piece, str) and name != "type":
                _append(block, name, piece)
            elif name != "type" and piece is not None:
                block[name] = piece


ASSEMBLIES: dict[str, type[Assembly]] = {
    "responses": ResponseAssembly,
    "chat_completions": CompletionAssembly,
    "messages": MessageAssembly,
}
"""API → what assembles its answers."""


def _is_another(known: JsonObject, piece: JsonObject, told: JsonObject) -> bool:
    """Whether a fragment begins another call than the one that has its index. Some endpoints give
    all calls one index, or each fragment another id, or repeat the name without an id."""
    name, before, call_id = told.get("name"), known["function"], piece.get("id")
    if not name or not before["name"] or (call_id and call_id == known["id"]):
        return False
    if call_id and known["id"]:
        return True
    given = _join(before["arguments"])
    return bool(given) and (_is_json(given) or name != before["name"])


def _is_json(text: str) -> bool:
    try:
        return text.rstrip().endswith("}") and orjson.loads(text) is not None
    except orjson.JSONDecodeError:
        return False


def _join_name(known: str | None, piece: Any) -> str | None:
    if not isinstance(piece, str) or not piece or known == piece:
        return known
    return (known or "") + piece


def _add_arguments(function: JsonObject, piece: Any) -> None:
    if piece is not None:  # some endpoints send an object
        text = piece if isinstance(piece, str) else orjson.dumps(piece).decode()
        _append(function, "arguments", text)


def _grow(fields: JsonObject, name: str, piece: Any) -> None:
    """Add a piece of any value: to the end of a text, into the entries of a list and of an
    object."""
    known = fields.get(name)
    if isinstance(piece, str) and isinstance(known, str | Pieces | None):
        if piece:
            _append(fields, name, piece)
        elif name != "content":
            fields.setdefault(name, piece)
    elif isinstance(piece, dict) and isinstance(known, dict):
        _replace(known, piece)
    elif isinstance(piece, list) or isinstance(known, list):
        if not isinstance(known, list):
            fields[name] = known = [_as_part(_join(known))] if known else []
        for entry in piece if isinstance(piece, list) else [piece]:
            _grow_list(known, _as_part(entry) if name == "content" else entry)
    else:
        fields[name] = piece


def _as_part(value: Any) -> Any:
    return {"type": "text", "text": value} if isinstance(value, str) else value


def _grow_list(entries: list[Any], entry: Any) -> None:
    """Add an entry, or to the last one: pieces of one entry have the same type and index."""
    last = entries[-1] if entries else None
    if (
        isinstance(entry, dict)
        and isinstance(last, dict)
        and all(entry.get(name) == last.get(name) for name in ("type", "index"))
        and any(isinstance(last.get(name), str | Pieces) and name in entry for name in GROWING)
    ):
        _replace(last, entry)
    else:
        entries.append(entry)


def _replace(known: JsonObject, piece: JsonObject) -> None:
    for name, value in piece.items():
        is_text = isinstance(value, str) and isinstance(known.get(name), str | Pieces)
        if name in GROWING and is_text:
            _append(known, name, value)
        elif isinstance(value, dict) and isinstance(known.get(name), dict):
            _replace(known[name], value)
        elif value is not None:
            known[name] = value


class Pieces:
    """A text that grows. Adding to a string copies all of it for each piece of a long answer."""

    __slots__ = ("parts",)

    def __init__(self, *parts: str) -> None:
        self.parts = list(parts)


def _append(texts: JsonObject, name: str, piece: str) -> None:
    """Add to the end of a text."""
    known = texts.get(name)
    if isinstance(known, Pieces):
        known.parts.append(piece)
    else:
        texts[name] = Pieces(known, piece) if known else piece


def _join(value: Any) -> Any:
    """The value with its texts as strings."""
    if isinstance(value, Pieces):
        return "".join(value.parts)
    if isinstance(value, dict):
        return {name: _join(each) for name, each in value.items()}
    return [_join(each) for each in value] if isinstance(value, list) else value
