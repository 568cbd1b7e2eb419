"""Anthropic's messages as responses. Each block becomes an item, in the same order.

What only the endpoint can read (signatures, redacted thoughts, blocks of its own tools) is kept as
the item's provider data, so that the next request has the same blocks again.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from rollout_kit.errors import ModelError
from rollout_kit.responses import (
    FILTERED,
    Item,
    as_object,
    count,
    function_call_item,
    make_response,
    message_item,
    new_id,
    quote_json,
    reasoning_item,
)
from rollout_kit.serving.endpoints.provider_data import find_attached, keep
from rollout_kit.serving.endpoints.replies import FAILED, MEANINGS
from rollout_kit.types import JsonObject

OF_TEXT, OF_CALL = ("type", "text"), ("type", "id", "name", "input")
"""Fields of blocks that have a place in our items."""

DIRECT = {"type": "direct"}
"""Value of `caller` in a call that the model itself has made, which is understood without it."""

TIERS = {"standard": "default"}
"""Service tiers whose names differ."""


def from_message(message: Any, params: Mapping[str, Any], endpoint: str) -> JsonObject:
    """A message as a response to `params`; ModelError if it is none."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise _garbage("it has no list 'content'", message)
    named = message.get("stop_reason")
    meaning = MEANINGS.get(str(named).lower(), named)
    if named is None or meaning == FAILED:
        what = f"the stop_reason {orjson.dumps(named).decode()}"
        raise ModelError(
            f"the endpoint failed while it answered, as its message has {what}",
            body=quote_json({"stop_reason": named}),
            retryable=True,
        )
    output = _items(content, message, endpoint)
    if meaning == FILTERED:
        output += _refusals(message)
    kinds = {item["type"] for item in output}
    if not (kinds & {"message", "function_call"} or meaning):
        output.append(message_item(""))
    if meaning is not None and output and output[-1]["type"] != "reasoning":
        output[-1]["status"] = "incomplete"
    usage = message.get("usage")
    response = make_response(
        str(message.get("model") or params.get("model") or ""),
        output,
        read_usage(usage),
        incomplete_reason=meaning,
        params={key: value for key, value in params.items() if value is not None},
    )
    used = as_object(usage)
    tier = "fast" if used.get("speed") == "fast" else used.get("service_tier")
    return (
        {**response, "service_tier": TIERS.get(tier, tier)} if isinstance(tier, str) else response
    )


def read_usage(given: Any) -> JsonObject | None:
    """The usage of a message as that of a response; None if it is unknown. Anthropic counts the
    input that is read from or written to a cache apart from the rest."""
    usage = as_object(given)
    if not usage:
        return None
    cached = count(usage, "cache_read_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    long = count(usage.get("cache_creation"), "ephemeral_1h_input_tokens")
    read, made = count(usage, "input_tokens") + cached + written, count(usage, "output_tokens")
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    thought = count(usage.get("output_tokens_details"), "thinking_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {**details, **({"cache_write_1h_tokens": long} if long else {})},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": read + made,
    }


def _items(content: list[JsonObject], message: JsonObject, endpoint: str) -> list[Item]:
    output: list[Item] = []
    texts: list[JsonObject] = []
    for block in [*content, {"type": ""}]:
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            texts.append(block)
            continue
        if texts:
            output.append(_text(texts, endpoint))
            texts = []
        match block.get("type"):
            case "":
                break
            case "tool_use":
                output.append(_call(block, message, endpoint))
            case "thinking" if isinstance(block.get("thinking"), str):
                thought = block["thinking"]
                item = reasoning_item(thought) if thought else _opaque()
                # the text is that of the item
                kept = {name: value for name, value in block.items() if name != "thinking"}
                keep(item, endpoint, block=kept)
                output.append(item)
            case _:
                item = _opaque()
                keep(item, endpoint, block=block)
                output.append(item)
    return output


def _opaque() -> Item:
    """A reasoning item for what only the endpoint can read."""
    return {"type": "reasoning", "id": new_id("rs"), "summary": []}


def _text(blocks: list[JsonObject], endpoint: str) -> Item:
    """Consecutive blocks of text as one message."""
    item = message_item("".join(block["text"] for block in blocks))
    if len(blocks) > 1 or find_attached(blocks[0], OF_TEXT):
        keep(item, endpoint, blocks=blocks)
    return item


def _call(block: JsonObject, message: JsonObject, endpoint: str) -> Item:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str):
        raise _garbage("one of its tool calls names no tool", message)
    # a stream that is cut off may leave a part of the arguments
    arguments = given if isinstance(given, str) else orjson.dumps(given or {}).decode()
    call_id = block.get("id")
    item = function_call_item(name, arguments, str(call_id) if call_id else None)
    more = find_attached(block, OF_CALL)
    keep(item, endpoint, block={name: more[name] for name in more if more[name] != DIRECT})
    return item


def _refusals(message: JsonObject) -> list[Item]:
    """Why the model refuses, if the endpoint says so."""
    why = as_object(message.get("stop_details")).get("explanation")
    if not isinstance(why, str) or not why:
        return []
    return [{**message_item(""), "content": [{"type": "refusal", "refusal": why}]}]


def _garbage(what: str, message: Any) -> ModelError:
    return ModelError(f"not a message: {what}", body=quote_json(_shown(message)), retryable=True)


def _shown(message: Any) -> Any:
    """A message for an error, without what only its endpoint can read."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    kinds = [{"type": as_object(block).get("type")} for block in message["content"]]
    return {**message, "content": kinds}
