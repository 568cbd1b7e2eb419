"""Server-sent events of both APIs: a complete answer as events, and events as an answer.

A received answer is complete only after its last event; a part of an answer is never returned.
"""

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from ..responses import Item
from ..transport.wire import read_json
from ..types import JsonObject

PIECE = 32
"""Characters of text per event: about eight tokens."""

DONE = b"data: [DONE]\n\n"

ENDS = ("response.completed", "response.incomplete", "response.failed")
"""Last events, which carry the whole response."""

SAID = ("reasoning_content", "reasoning", "content", "refusal")
"""Texts of a chat message that arrive in pieces."""

ADDED_UP = ("content", "refusal")
"""Lists of log-probs that arrive in pieces."""


def response_events(response: JsonObject) -> list[bytes]:
    """The events in which the Responses API streams a response."""
    return [
        b"event: %b\n" % kind.encode() + _event({"type": kind, "sequence_number": number, **fields})
        for number, (kind, fields) in enumerate(_told(response))
    ]


def completion_events(completion: JsonObject, *, usage: bool) -> list[bytes]:
    """The chunks of a chat completion; with `usage` the last chunk holds the token counts."""
    return [*map(_event, _chunks(completion, usage)), DONE]


def _event(data: JsonObject) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _told(response: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    begun = {**response, "output": [], "status": "in_progress", "usage": None}
    begun["incomplete_details"] = None
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(response["output"]):
        yield from _item_events({"output_index": index}, item)
    yield f"response.{response.get('status') or 'completed'}", {"response": response}


def _item_events(at: JsonObject, item: Item) -> Iterator[tuple[str, JsonObject]]:
    opened, inner = {**item, "status": "in_progress"}, {**at, "item_id": item.get("id", "")}
    match item.get("type"):
        case "message":
            yield "response.output_item.added", {**at, "item": {**opened, "content": []}}
            for index, part in enumerate(item.get("content") or ()):
                yield from _part_events({**inner, "content_index": index}, part)
        case "function_call":
            yield "response.output_item.added", {**at, "item": {**opened, "arguments": ""}}
            for piece in _pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", {**inner, "delta": piece}
            said = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", {**inner, **said}
        case "reasoning":
            yield "response.output_item.added", {**at, "item": {**item, "summary": []}}
            for index, part in enumerate(item.get("summary") or ()):
                yield from _summary_events({**inner, "summary_index": index}, part)
        case _:
            yield "response.output_item.added", {**at, "item": item}
    yield "response.output_item.done", {**at, "item": item}


def _part_events(at: JsonObject, part: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    field = "refusal" if part.get("type") == "refusal" else "text"
    kind = "refusal" if field == "refusal" else "output_text"
    logprobs = {} if field == "refusal" else {"logprobs": []}
    yield "response.content_part.added", {**at, "part": {**part, field: ""}}
    for piece in _pieces(part[field]):
        yield f"response.{kind}.delta", {**at, "delta": piece, **logprobs}
    yield f"response.{kind}.done", {**at, field: part[field], **logprobs}
    yield "response.content_part.done", {**at, "part": part}


def _summary_events(at: JsonObject, part: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
    for piece in _pieces(part["text"]):
        yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
    yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
    yield "response.reasoning_summary_part.done", {**at, "part": part}


def _chunks(completion: JsonObject, usage: bool) -> Iterator[JsonObject]:
    head = {key: completion[key] for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    choice = completion["choices"][0]
    message = choice["message"]

    def chunk(delta: JsonObject, **more: Any) -> JsonObject:
        empty = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**head, "choices": [{**empty, **more}]}

    prompt = completion.get("prompt_token_ids")
    begun = chunk({"role": "assistant", "content": ""})
    yield begun if prompt is None else {**begun, "prompt_token_ids": prompt}
    for field in SAID:
        for piece in _pieces(message.get(field) or ""):
            yield chunk({field: piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, **{key: value for key, value in choice.items() if key != "message"})
    if usage:
        yield {**head, "choices": [], "usage": completion.get("usage")}


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


class Assembly:
    """Assembles an answer from its events: `feed` takes the pieces of the body, `whole` returns the
    answer. `heard` is called for each piece."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        self.has_begun = False
        self._heard = heard
        self._rest = b""
        self._data: list[bytes] = []
        self._is_spoilt = self._is_done = False
        self._whole: JsonObject | None = None

    def feed(self, piece: bytes) -> None:
        """Take a piece. Never raises; an invalid piece makes the whole answer invalid."""
        self.has_begun = True
        self._heard()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                self._read(data)

    def whole(self) -> JsonObject | None:
        """The answer, in the form without streaming, or an `error`; None if the stream is not
        complete."""
        return None if self._is_spoilt else self._whole

    def _read(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            event = read_json(data)
            if error := event.get("error"):
                self._whole = {"error": error}
            else:
                self._take(event)
        except (ValueError, TypeError, LookupError, AttributeError):
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
    """Assembles a chat completion from its chunks; it is complete after a finish reason and the end
    of the stream."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        super().__init__(heard)
        self._head: JsonObject = {}
        self._message: JsonObject = {"role": "assistant", "content": None}
        self._calls: dict[Any, JsonObject] = {}
        self._choice: JsonObject = {"index": 0}

    def whole(self) -> JsonObject | None:
        is_over = self._is_done or "usage" in self._head  # some endpoints send no [DONE]
        if self._whole is None and is_over and "finish_reason" in self._choice:
            calls = {"tool_calls": list(self._calls.values())} if self._calls else {}
            choice = {**self._choice, "message": {**self._message, **calls}}
            self._whole = {**self._head, "object": "chat.completion", "choices": [choice]}
        return super().whole()

    def _take(self, event: JsonObject) -> None:
        self._head |= {
            key: value for key, value in event.items() if key != "choices" and value is not None
        }
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                self._add(choice)

    def _add(self, choice: JsonObject) -> None:
        delta = choice.get("delta") or {}
        for field in SAID:
            if piece := delta.get(field):
                _append(self._message, field, piece)
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        if reason := choice.get("finish_reason"):
            self._choice["finish_reason"] = reason
        if ids := choice.get("token_ids"):
            self._choice.setdefault("token_ids", []).extend(ids)
        for field, listed in (choice.get("logprobs") or {}).items():
            if field in ADDED_UP and listed:
                logprobs = self._choice.setdefault("logprobs", {})
                logprobs.setdefault(field, []).extend(listed)

    def _add_call(self, piece: JsonObject) -> None:
        place = piece.get("index", 0)
        known = self._calls.get(place)
        if known and piece.get("id") not in (None, "", known["id"]):
            place = piece["id"]  # another call: some endpoints give all calls the same index
            known = self._calls.get(place)
        told = piece.get("function") or {}
        if known is None:
            call = {key: value for key, value in piece.items() if key != "index"}
            call["function"] = {"name": told.get("name"), "arguments": told.get("arguments") or ""}
            self._calls[place] = {"id": None, "type": "function", **call}
        else:
            _append(known["function"], "arguments", told.get("arguments") or "")


def _append(texts: JsonObject, name: str, piece: str) -> None:
    """Add to the end of a text. With a second reference to it, Python would copy all of it for each
    piece of a long answer."""
    text = texts.get(name) or ""
    texts[name] = None
    text += piece
    texts[name] = text
