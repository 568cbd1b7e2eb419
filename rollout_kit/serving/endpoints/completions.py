"""Translate Chat Completions requests to Responses, and responses to chat completions.

`as_params` raises TaskError for what create params cannot express. `as_completion` makes a
completion that the OpenAI SDK's `ChatCompletion` accepts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import TaskError
from ...responses import (
    CUT_OFF,
    FILTERED,
    PROVIDER_DATA,
    Item,
    content_texts,
    function_calls,
    output_text,
    reasoning_item,
)
from ...types import JsonObject
from .chat import LOGPROBS
from .provider_data import (
    OF_MESSAGE,
    THINKING_BLOCKS,
    call_data,
    find_attached,
    find_block,
    keep,
    put_call_data,
    put_message_data,
)

RENAMED = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
}

TRANSLATED = frozenset(
    {
        *RENAMED,
        "messages",
        "n",
        "tools",
        "tool_choice",
        "response_format",
        "reasoning_effort",
        "verbosity",
        "logprobs",
        "stream",
        "stream_options",
    }
)

REFUSED = ("functions", "function_call", "audio")
"""Keys that no model server accepts; the first two are older names of `tools` and `tool_choice`."""

FINISH = {CUT_OFF: "length", FILTERED: "content_filter"}
"""`incomplete_details.reason` → `finish_reason`; others are the same."""

SHOWN_AS = ("reasoning_content", "reasoning")
"""Fields in which clients return the reasoning of an assistant message."""


def as_params(request: Mapping[str, Any]) -> JsonObject:
    """A chat completion request as Responses create params."""
    try:
        return _params(request)
    except (AttributeError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise bad_request(f"this is no chat completion request: {what}") from None


def _params(request: Mapping[str, Any]) -> JsonObject:
    given = {key: value for key, value in request.items() if value is not None}
    for key in REFUSED:
        if key in given:
            raise bad_request(f"{key}: is not known here")
    if given.get("n", 1) != 1:
        raise bad_request("n: there is one choice; ask several times for several")
    messages = given.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise bad_request("messages: must be a list of messages")
    params: JsonObject = {key: value for key, value in given.items() if key not in TRANSLATED}
    params["input"] = [item for message in messages for item in _items(message)]
    params |= {name: given[key] for key, name in reversed(RENAMED.items()) if key in given}
    if "tools" in given:
        params["tools"] = [_tool(tool) for tool in given["tools"]]
    if "tool_choice" in given:
        params["tool_choice"] = _tool_choice(given["tool_choice"])
    if "reasoning_effort" in given:
        params["reasoning"] = {"effort": given["reasoning_effort"]}
    text = {}
    if "response_format" in given:
        text["format"] = _text_format(given["response_format"])
    if "verbosity" in given:
        text["verbosity"] = given["verbosity"]
    if text:
        params["text"] = text
    if given.get("logprobs"):
        params["include"] = [LOGPROBS]
    return params


def as_completion(response: Mapping[str, Any]) -> JsonObject:
    """A response as a chat completion, with its token ids and log-probs, if any."""
    output = response["output"]
    calls = [_call(item) for item in function_calls(output)]
    texts = [item for item in output if item.get("type") == "message"]
    message: JsonObject = {
        "role": "assistant",
        "content": output_text(response) if texts or not calls else None,
        "refusal": _refusal(texts),
    }
    if thought := _reasoning(output):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    for item in output:
        if data := item.get(PROVIDER_DATA):
            put_message_data(message, data, thought)
            if (block := find_block(item, data)) is not None:
                message.setdefault(THINKING_BLOCKS, []).append(block)
    choice: JsonObject = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(texts),
        "finish_reason": finish_reason(response) or ("tool_calls" if calls else "stop"),
    }
    made: JsonObject = {
        "id": f"chatcmpl-{response.get('id', '')}",
        "object": "chat.completion",
        "created": int(response.get("created_at") or 0),
        "model": response.get("model") or "",
        "choices": [choice],
        "usage": _usage(response.get("usage") or {}),
    }
    last = output[-1] if output else {}
    if "generation_token_ids" in last:  # with vLLM's names
        made["prompt_token_ids"] = last.get("prompt_token_ids")
        choice["token_ids"] = last["generation_token_ids"]
        choice["logprobs"] = choice["logprobs"] or _logprobs_by_id(last)
    return made


def finish_reason(response: Mapping[str, Any]) -> str:
    """Why a response is not whole, in the words of Chat Completions; empty if it is."""
    reason = str((response.get("incomplete_details") or {}).get("reason") or "")
    return FINISH.get(reason, reason)


def _items(message: JsonObject) -> Iterator[Item]:
    match message.get("role"):
        case "assistant":
            yield from _turn(message)
        case "tool":
            output = "\n".join(content_texts(message.get("content")))
            call_id = message.get("tool_call_id")
            yield {"type": "function_call_output", "call_id": call_id, "output": output}
        case "system" | "developer" | "user" as role:
            yield {"role": role, "content": _content(message.get("content"))}
        case other:
            raise bad_request(f"messages: there is no role {other!r}")


def _turn(message: JsonObject) -> list[Item]:
    """The items of an assistant message, with what the client got attached to it."""
    texts = {name: message[name] for name in SHOWN_AS if isinstance(message.get(name), str)}
    thought = next(filter(None, texts.values()), "")
    items: list[Item] = [reasoning_item(thought)] if thought else []
    if content := _said(message):
        items.append({"type": "message", "role": "assistant", "content": content})
    for call in message.get("tool_calls") or ():
        item: Item = {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": call["function"].get("name"),
            "arguments": call["function"].get("arguments") or "",
        }
        keep(item, "", call=call_data(call))
        items.append(item)
    if items:
        text_in = [name for name, text in texts.items() if text and text == thought]
        fields = find_attached(message, {*OF_MESSAGE, "name", *text_in})
        keep(items[0], "", text_in=text_in, message=fields)
    return items


def _said(message: JsonObject) -> list[JsonObject]:
    """The text of an assistant message, as parts."""
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if message.get("refusal"):
        parts = [*parts, {"type": "refusal", "refusal": message["refusal"]}]
    return [
        part if part.get("type") == "refusal" else {"type": "output_text", "text": part["text"]}
        for part in parts
        if part.get("text") or part.get("refusal")
    ]


def _content(content: Any) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content or ()]


def _part(part: JsonObject) -> JsonObject:
    if (found := read_part(part)) is None:
        raise bad_request(f"messages: there is no part {part.get('type')!r}")
    return found


def read_part(part: JsonObject) -> JsonObject | None:
    """A part of a chat message as one of the Responses API; None if that knows no such part."""
    match part.get("type"):
        case "text":
            return {"type": "input_text", "text": part.get("text", "")}
        case "image_url":
            image = part.get("image_url") or {}
            detail = {"detail": image["detail"]} if image.get("detail") else {}
            return {"type": "input_image", "image_url": image.get("url"), **detail}
        case "input_audio":
            return part
        case "file":
            return {"type": "input_file", **(part.get("file") or {})}
    return None


def _tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") != "function" or (found := read_tool(tool)) is None:
        raise bad_request(f"tools: must be functions, not {tool.get('type')!r}")
    return found


def read_tool(tool: JsonObject) -> JsonObject | None:
    """A tool of Chat as one of the Responses API; None if it is no function."""
    inner = tool.get("function")
    return {"type": "function", **inner} if isinstance(inner, dict) else None


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    match choice.get("type"):
        case "function":
            return {"type": "function", "name": choice["function"].get("name")}
        case "allowed_tools":
            inner = choice["allowed_tools"]
            tools = [_tool_choice(tool) for tool in inner["tools"]]
            return {"type": "allowed_tools", "mode": inner.get("mode", "auto"), "tools": tools}
        case other:
            raise bad_request(f"tool_choice: there is no {other!r}")


def _text_format(wanted: JsonObject) -> JsonObject:
    if wanted.get("type") != "json_schema":
        return wanted
    return {"type": "json_schema", **wanted["json_schema"]}


def _call(item: Item) -> JsonObject:
    function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    put_call_data(call, item.get(PROVIDER_DATA, {}).get("call", {}))
    return call


def _refusal(messages: list[Item]) -> str | None:
    parts = [part for each in messages for part in each.get("content") or ()]
    return "".join(part["refusal"] for part in parts if part.get("type") == "refusal") or None


def _reasoning(output: list[Item]) -> str:
    thoughts = [item for item in output if item.get("type") == "reasoning"]
    texts = [content_texts(each.get("content") or each.get("summary")) for each in thoughts]
    return "\n".join(text for each in texts for text in each)


def _logprobs(messages: list[Item]) -> JsonObject | None:
    parts = [part for each in messages for part in each.get("content") or ()]
    listed = [entry for part in parts for entry in part.get("logprobs") or ()]
    return {"content": listed, "refusal": None} if listed else None


def _logprobs_by_id(item: Item) -> JsonObject:
    pairs = zip(item["generation_token_ids"], item.get("generation_log_probs") or (), strict=False)
    content = [
        {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
        for token, value in pairs
    ]
    return {"content": content, "refusal": None}


def _usage(given: Mapping[str, Any]) -> JsonObject:
    read, written = given.get("input_tokens") or 0, given.get("output_tokens") or 0
    cached = (given.get("input_tokens_details") or {}).get("cached_tokens") or 0
    thought = (given.get("output_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": given.get("total_tokens") or read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def bad_request(message: str) -> TaskError:
    """The error for a request that this API does not know."""
    return TaskError(message, status=400)
