"""Responses-API items as the messages of OpenTelemetry's GenAI conventions."""

from collections.abc import Iterable
from typing import Any

import orjson

from ...responses import Item, content_texts, reasoning_texts
from ...types import JsonObject


def to_messages(items: Iterable[Item]) -> list[JsonObject]:
    """One message for each run of items of one role. What is neither text, reasoning, a tool call
    nor its output becomes a part with its type only."""
    found: list[JsonObject] = []
    for item in items:
        role, parts = _role(item), _parts(item)
        if found and found[-1]["role"] == role and role != "user":
            found[-1]["parts"] += parts
        else:
            found.append({"role": role, "parts": parts})
    return found


def arguments_of(call: Item) -> Any:
    """The arguments of a call, parsed; the text that the model wrote if it is not JSON."""
    text = call.get("arguments")
    try:
        return orjson.loads(text) if isinstance(text, str) else text
    except orjson.JSONDecodeError:
        return text


def output_of(item: Item) -> str:
    """The text of a call's output."""
    return "\n".join(content_texts(item.get("output")))


def to_text(value: Any) -> str:
    """JSON as the value of an attribute."""
    return orjson.dumps(value).decode()


def _role(item: Item) -> str:
    kind = item.get("type")
    if kind == "function_call_output":
        return "tool"
    if kind in (None, "message"):
        return str(item.get("role") or "user")
    return "assistant"


def _parts(item: Item) -> list[JsonObject]:
    kind = item.get("type")
    if kind == "function_call":
        name, called = str(item.get("name")), arguments_of(item)
        return [{"type": "tool_call", "id": item.get("call_id"), "name": name, "arguments": called}]
    if kind == "function_call_output":
        found = {"id": item.get("call_id"), "response": output_of(item)}
        return [{"type": "tool_call_response", **found}]
    if kind == "reasoning":
        texts = reasoning_texts(item)
        return [{"type": "reasoning", "content": text} for text in texts]
    if kind not in (None, "message"):
        return [{"type": str(kind)}]
    content = item.get("content")
    if not isinstance(content, list):
        return [{"type": "text", "content": text} for text in content_texts(content)]
    return [_part(part) for part in content if isinstance(part, dict)]


def _part(part: JsonObject) -> JsonObject:
    if isinstance(text := part.get("text"), str):
        return {"type": "text", "content": text}
    return {"type": str(part.get("type"))}
