"""Server-sent events of both APIs: a complete answer as events.

`assembly` makes an answer of the events that somebody else sends.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from ...responses import Item
from ...types import JsonObject

PIECE = 32
"""Characters of text per event: about eight tokens."""

DONE = b"data: [DONE]\n\n"

IN_PIECES = ("reasoning_content", "reasoning", "content", "refusal")
"""Texts of a chat message that are sent in pieces."""

WHOLE = ("role", "tool_calls", *IN_PIECES)
"""Fields of a chat message that no event holds for themselves."""


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
    begun |= {name: None for name in ("incomplete_details", "completed_at") if name in response}
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
    for field in IN_PIECES:
        said = message.get(field)
        # an empty thought is one, and is wanted back
        for piece in _pieces(said or "") or ([""] if said == "" and field != "content" else []):
            yield chunk({field: piece})
    if rest := {name: message[name] for name in message if name not in WHOLE}:
        yield chunk(rest)
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, **{key: value for key, value in choice.items() if key != "message"})
    if usage:
        yield {**head, "choices": [], "usage": completion.get("usage")}


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
