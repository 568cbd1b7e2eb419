"""Translate Anthropic's Messages requests to Responses, and responses to messages.

`as_params` raises TaskError for what create params cannot express. `message_events` streams a
message as Anthropic's clients expect it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from ...responses import Item, content_texts, output_text, reasoning_item
from ...types import JsonObject
from .completions import bad_request
from .provider_data import seal, seal_thought, unpack, unseal, unseal_thought

RENAMED = {"max_tokens": "max_output_tokens", "stop_sequences": "stop"}

SAME = ("model", "temperature", "top_p", "top_k", "service_tier")

OF_API = frozenset(
    {
        *("messages", "system", "tools", "tool_choice", "stream", *RENAMED, *SAME),
        *("thinking", "output_config", "metadata", "container", "context_management", "speed"),
        "output_format",
        *("mcp_servers", "cache_control", "diagnostics", "inference_geo", "betas"),
        *("user_profile_id", "workspace_id"),
    }
)
"""Fields of a request that the API knows; others are for the endpoint behind the server."""

CHOICES = {"auto": "auto", "any": "required", "none": "none"}

STOPS = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
"""Reason of an incomplete response → `stop_reason`."""


def as_params(request: Mapping[str, Any]) -> JsonObject:
    """A Messages request as Responses create params. What only shapes the delivery, such as
    caching and the budget of thoughts, is left out. A field that the API does not know is kept."""
    try:
        given = {key: value for key, value in request.items() if value is not None}
        params: JsonObject = {
            key: value for key, value in given.items() if key in SAME or key not in OF_API
        }
        params |= {name: given[key] for key, name in RENAMED.items() if key in given}
        system = "\n".join(content_texts(_blocks(given.get("system", ""))))
        params["input"] = [{"role": "system", "content": system}] if system else []
        for message in given["messages"]:
            params["input"] += _turn(message)
        if given.get("tools"):
            params["tools"] = [_tool(tool) for tool in given["tools"]]
        params |= _tool_choice(given.get("tool_choice"))
        params |= _format(given)
    except (AttributeError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise bad_request(f"this is no Messages request: {what}") from None
    return params


def as_message(response: Mapping[str, Any]) -> JsonObject:
    """A response as a message."""
    content = [block for item in response["output"] for block in _content_of(item)]
    if signature := seal(response["output"]):
        thoughts = [block for block in content if block.get("signature") == ""]
        if thoughts:
            thoughts[0]["signature"] = signature
        else:
            content.insert(0, {"type": "redacted_thinking", "data": signature})
    reason = (response.get("incomplete_details") or {}).get("reason")
    calls = any(block["type"] == "tool_use" for block in content)
    usage = response.get("usage") or {}
    details = usage.get("input_tokens_details") or {}
    cached, written = (details.get(name) or 0 for name in ("cached_tokens", "cache_write_tokens"))
    return {
        "id": f"msg_{response.get('id', '')}",
        "type": "message",
        "role": "assistant",
        "model": response.get("model") or "",
        "content": content,
        "stop_reason": STOPS.get(reason or "", reason) or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": max((usage.get("input_tokens") or 0) - cached - written, 0),
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.get("output_tokens") or 0,
        },
    }


def message_events(message: JsonObject) -> list[bytes]:
    """The events in which the Messages API streams a message."""
    return [
        b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
        for kind, fields in _told(message)
    ]


def _told(message: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    yield "message_start", {"message": begun}
    for index, block in enumerate(message["content"]):
        empty, deltas = _in_parts(block)
        yield "content_block_start", {"index": index, "content_block": empty}
        for delta in deltas:
            yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    end = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    yield "message_delta", {"delta": end, "usage": {"output_tokens": usage["output_tokens"]}}
    yield "message_stop", {}


def _in_parts(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    match block["type"]:
        case "tool_use":
            text = orjson.dumps(block["input"]).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            if block["signature"]:
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "redacted_thinking":
            return block, []
        case _:
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _turn(message: JsonObject) -> list[Item]:
    """The items of a message, with the provider data that its client kept as a signature."""
    items = list(_items(message))
    if message["role"] != "assistant":
        return items
    thoughts = [
        block
        for block in _blocks(message["content"])
        if block.get("type") in ("thinking", "redacted_thinking")
    ]
    return unpack(items, [unseal(each.get("signature") or each.get("data")) for each in thoughts])


def _items(message: JsonObject) -> Iterator[Item]:
    role, parts = message["role"], []
    for block in _blocks(message["content"]):
        item = _assistant_item(block) if role == "assistant" else _result(block)
        if item is not None:
            if parts:
                yield {"role": role, "content": parts}
                parts = []
            yield item
        elif role == "user":
            parts.append(_part(block))
    if parts:
        yield {"role": role, "content": parts}


def _assistant_item(block: JsonObject) -> Item | None:
    match block["type"]:
        case "text":
            text = {"type": "output_text", "text": block["text"]}
            return {"type": "message", "role": "assistant", "content": [text]}
        case "tool_use":
            arguments = orjson.dumps(block["input"]).decode()
            call = {"call_id": block["id"], "name": block["name"], "arguments": arguments}
            return {"type": "function_call", **call}
        case "thinking":
            return unseal_thought(block.get("signature")) or reasoning_item(block["thinking"])
        case "redacted_thinking":
            return unseal_thought(block.get("data"))
        case other:
            raise bad_request(f"messages: an assistant has no {other!r}")


def _result(block: JsonObject) -> Item | None:
    if block["type"] != "tool_result":
        return None
    blocks = _blocks(block.get("content") or "")
    output: Any = "\n".join(content_texts(blocks))
    if any(each["type"] != "text" for each in blocks):
        output = [_part(each) for each in blocks]
    return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": output}


def _part(block: JsonObject) -> JsonObject:
    match block["type"]:
        case "text":
            return {"type": "input_text", "text": block["text"]}
        case "image":
            source = block["source"]
            url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
            return {"type": "input_image", "image_url": url}
        case "document" if block["source"].get("type") == "text":
            return {"type": "input_text", "text": block["source"]["data"]}
        case other:
            raise bad_request(f"messages: there is no part {other!r}")


def _content_of(item: Item) -> Iterator[JsonObject]:
    match item.get("type"):
        case "message":
            if text := output_text({"output": [item]}):
                yield {"type": "text", "text": text}
        case "function_call":
            try:
                arguments = orjson.loads(item.get("arguments") or "{}")
            except orjson.JSONDecodeError:
                arguments = {"arguments": item.get("arguments")}  # as the model wrote them
            known = {"id": item.get("call_id"), "name": item.get("name"), "input": arguments}
            yield {"type": "tool_use", **known}
        case "reasoning":
            texts = content_texts(item.get("content") or item.get("summary"))
            sealed = seal_thought(item)
            if thought := "\n".join(texts):
                yield {"type": "thinking", "thinking": thought, "signature": sealed}
            elif sealed:
                yield {"type": "redacted_thinking", "data": sealed}


def _tool(tool: JsonObject) -> JsonObject:
    if "input_schema" not in tool:
        raise bad_request(f"tools: {tool.get('type')!r} runs at Anthropic only")
    schema = {"name": tool["name"], "parameters": tool["input_schema"]}
    return {"type": "function", "description": tool.get("description", ""), **schema}


def _format(given: JsonObject) -> JsonObject:
    """The JSON that is wanted, also where a beta of the API had it."""
    wanted = given.get("output_config", {}).get("format") or given.get("output_format")
    if wanted is None:
        return {}
    if wanted["type"] != "json_schema":
        raise bad_request(f"output_config.format: type is '{wanted['type']}', no 'json_schema'")
    return {"text": {"format": {**wanted, "name": "answer"}}}


def _tool_choice(choice: Any) -> JsonObject:
    if choice is None:
        return {}
    kind = choice["type"]
    named = (
        {"type": "function", "name": choice.get("name")} if kind == "tool" else CHOICES.get(kind)
    )
    if named is None:
        raise bad_request(f"tool_choice: there is no {kind!r}")
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": named, **parallel}


def _blocks(content: Any) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
