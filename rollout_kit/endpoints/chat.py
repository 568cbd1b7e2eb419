"""Translate Responses requests to Chat Completions, and chat completions to responses.

`to_chat` raises TaskError for what Chat Completions cannot express, and drops nothing silently.
`from_chat` makes a response that the OpenAI SDK's `Response` accepts. Keys that have the same name
in both APIs are passed on, and so are an endpoint's own parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import orjson

from ..errors import ModelError, TaskError
from ..responses import (
    Item,
    as_object,
    content_texts,
    count,
    function_call_item,
    input_items,
    make_response,
    message_item,
    new_id,
    quote_json,
    reasoning_item,
)
from ..types import JsonObject

ReasoningField = Literal["reasoning_content", "reasoning"]
MaxTokensField = Literal["max_completion_tokens", "max_tokens"]

RAW = "raw_prompt"
"""Create param: the input is one text, which the model continues without a chat template."""

TRANSLATED = frozenset(
    {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "text",
        "reasoning",
        "top_logprobs",
    }
)

WITHOUT_MEANING = frozenset(
    {"include", "truncation", "background", "max_tool_calls", "stream", "stream_options", RAW}
)
"""Keys of the Responses API that affect the delivery of a reply, not what a turn generates."""

SERVER_SIDE = ("previous_response_id", "conversation", "prompt")
"""Keys that refer to data stored by a Responses server, without which the request is incomplete."""

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""`finish_reason` → `incomplete_details.reason`."""

THINK, END_THINK = "<think>", "</think>"


def to_chat(
    params: Mapping[str, Any],
    *,
    reasoning_field: ReasoningField | None = None,
    max_tokens_field: MaxTokensField = "max_completion_tokens",
) -> JsonObject:
    """Responses create params as a chat completion request.

    Reasoning items of the input become the field `reasoning_field` of their assistant message;
    without that name they are dropped.
    """
    given = {key: value for key, value in params.items() if value is not None}
    for key in SERVER_SIDE:
        if key in given:
            raise TaskError(f"{key}: a Chat Completions endpoint stores no responses")
    if not isinstance(given.get("input", []), str | list):
        raise TaskError("input: must be a string or a list of items", status=400)
    if given.get("n", 1) != 1:
        raise TaskError("n: a rollout has one response; use num_repeats for several")
    handled = TRANSLATED | WITHOUT_MEANING
    body: JsonObject = {key: value for key, value in given.items() if key not in handled}
    body["messages"] = _messages(given, reasoning_field)
    if "max_output_tokens" in given:
        body[max_tokens_field] = given["max_output_tokens"]
    if tools := given.get("tools"):
        body["tools"] = [_tool(tool) for tool in tools]
        # endpoints refuse these two if there are no tools
        if "tool_choice" in given:
            body["tool_choice"] = _tool_choice(given["tool_choice"])
        if "parallel_tool_calls" in given:
            body["parallel_tool_calls"] = given["parallel_tool_calls"]
    if (effort := given.get("reasoning", {}).get("effort")) is not None:
        body["reasoning_effort"] = effort
    text = given.get("text", {})
    if (response_format := _response_format(text.get("format"))) is not None:
        body["response_format"] = response_format
    if text.get("verbosity") is not None:
        body["verbosity"] = text["verbosity"]
    if "top_logprobs" in given:
        body |= {"logprobs": True, "top_logprobs": given["top_logprobs"]}
    return body


def from_chat(completion: Any, params: Mapping[str, Any]) -> JsonObject:
    """A chat completion as a response to `params`; ModelError if it is not a completion."""
    choice = _only_choice(completion)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _garbage("its choice has no message", completion)
    reason = INCOMPLETE.get(choice.get("finish_reason") or "")
    if not isinstance(message.get("content"), str | list | None):
        raise _garbage("its content is no text", completion)
    text, reasoning = _text_and_reasoning(message, is_raw=bool(params.get(RAW)))
    asked = message.get("tool_calls") or []
    if not isinstance(asked, list):
        raise _garbage("its tool calls are no list", completion)
    calls = [_function_call(call, completion) for call in asked]
    output: list[Item] = [reasoning_item(reasoning)] if reasoning else []
    refusal = message.get("refusal")
    if text or refusal or not (calls or reason):
        output.append(_message(text, refusal, incomplete=reason is not None))
    response = make_response(
        str(completion.get("model") or params.get("model") or ""),
        output + calls,
        _usage(completion.get("usage")),
        incomplete_reason=reason,
        params={key: value for key, value in params.items() if value is not None},
    )
    tier = completion.get("service_tier")
    return {**response, "service_tier": tier} if isinstance(tier, str) else response


def _messages(given: Mapping[str, Any], reasoning_field: ReasoningField | None) -> list[JsonObject]:
    messages = _Messages(reasoning_field)
    if instructions := given.get("instructions"):
        messages.add({"role": "system", "content": instructions})
    for item in input_items(given):
        match item.get("type", "message"):
            case "message" if item.get("role") == "assistant":
                messages.add_text(*_assistant_content(item.get("content")))
            case "message":
                messages.add({"role": item.get("role"), "content": _content(item.get("content"))})
            case "function_call":
                messages.add_call(item)
            case "function_call_output":
                messages.add(
                    {
                        "role": "tool",
                        "tool_call_id": item.get("call_id"),
                        "content": _tool_content(item.get("output")),
                    }
                )
            case "reasoning":
                messages.add_reasoning(item)
            case other:
                raise TaskError(f"input: a Chat Completions endpoint cannot take a '{other}' item")
    return messages.done


class _Messages:
    """Builds chat messages: the items of one assistant turn become one message."""

    def __init__(self, reasoning_field: ReasoningField | None) -> None:
        self.done: list[JsonObject] = []
        self._reasoning_field = reasoning_field
        self._reasoning: list[str] = []

    def add(self, message: JsonObject) -> None:
        self._reasoning.clear()
        self.done.append(message)

    def add_text(self, content: str, refusal: str) -> None:
        # a message beside the calls of its turn must not come between the calls and their outputs
        message = self._open(lambda last: last.get("content") is None and "tool_calls" in last)
        message["content"] = content
        if refusal:
            message["refusal"] = refusal

    def add_call(self, item: Item) -> None:
        message = self._open(lambda last: True)
        message.setdefault("content", None)
        function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)

    def add_reasoning(self, item: Item) -> None:
        texts = content_texts(item.get("content")) or content_texts(item.get("summary"))
        self._reasoning += texts

    def _open(self, may_join: Callable[[JsonObject], bool]) -> JsonObject:
        """The assistant message of this turn: the last message if it fits, else a new one."""
        last = self.done[-1] if self.done else {}
        if last.get("role") != "assistant" or not may_join(last):
            last = {"role": "assistant"}
            self.done.append(last)
        if self._reasoning and self._reasoning_field:
            earlier = [last[self._reasoning_field]] if self._reasoning_field in last else []
            last[self._reasoning_field] = "\n".join([*earlier, *self._reasoning])
        self._reasoning.clear()
        return last


def _assistant_content(content: Any) -> tuple[str, str]:
    """The text and the refusal of an assistant message."""
    parts = [] if isinstance(content, str) else content or []
    refusals = [part["refusal"] for part in parts if isinstance(part.get("refusal"), str)]
    return "".join(content_texts(content)), "".join(refusals)


def _content(content: Any) -> Any:
    """A message's content: a string if it is only text, else chat's list of parts."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [_part(part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _tool_content(output: Any) -> Any:
    # many chat templates accept only text as a tool's output
    parts = _content(output)
    if isinstance(parts, list) and all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: JsonObject) -> JsonObject:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text", "")}
        case "input_image" if part.get("image_url"):
            image = {"url": part["image_url"]}
            if part.get("detail"):
                image["detail"] = part["detail"]
            return {"type": "image_url", "image_url": image}
        case "input_image":
            raise TaskError("input: a Chat Completions endpoint needs an image's image_url")
        case "input_audio":
            return {"type": "input_audio", "input_audio": part.get("input_audio")}
        case "input_file" if part.get("file_url"):
            raise TaskError("input: a Chat Completions endpoint cannot fetch a file_url")
        case "input_file":
            keys = ("file_id", "file_data", "filename")
            return {"type": "file", "file": {key: part[key] for key in keys if part.get(key)}}
        case "image_url" | "file" | "video_url" | "audio_url":
            return part  # already in chat's form
        case other:
            raise TaskError(f"input: a Chat Completions endpoint cannot take a '{other}' part")


def _tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") != "function":
        raise TaskError(f"tools: a Chat Completions endpoint has no '{tool.get('type')}' tools")
    keys = ("name", "description", "parameters", "strict")
    function = {key: tool[key] for key in keys if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    match choice.get("type"):
        case "function":
            return {"type": "function", "function": {"name": choice.get("name")}}
        case "allowed_tools":
            allowed = [
                {"type": "function", "function": {"name": t.get("name")}} for t in choice["tools"]
            ]
            inner = {"mode": choice.get("mode", "auto"), "tools": allowed}
            return {"type": "allowed_tools", "allowed_tools": inner}
        case other:
            raise TaskError(f"tool_choice: a Chat Completions endpoint has no '{other}'")


def _response_format(wanted: JsonObject | None) -> JsonObject | None:
    if not wanted or wanted.get("type") == "text":
        return None
    if wanted.get("type") != "json_schema":
        return wanted
    keys = ("name", "description", "schema", "strict")
    schema = {key: wanted[key] for key in keys if wanted.get(key) is not None}
    return {"type": "json_schema", "json_schema": schema}


def _only_choice(completion: Any) -> JsonObject:
    choices = completion.get("choices") if isinstance(completion, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _garbage("it has no choices", completion)
    if len(choices) > 1:
        raise TaskError(f"n: the model answered {len(choices)} times; a rollout has one response")
    return choices[0]


def _text_and_reasoning(message: JsonObject, *, is_raw: bool) -> tuple[str, str]:
    """The answer and the reasoning, which the endpoint may not have separated; a raw completion is
    one text."""
    content = message.get("content")
    text = "".join(content_texts(content))
    if is_raw:
        return text, ""
    for field in ("reasoning_content", "reasoning"):
        if isinstance(message.get(field), str) and message[field]:
            return text, message[field]
    start = text.lstrip()
    thought, closed, said = start.removeprefix(THINK).partition(END_THINK)
    # a chat template may write the opening tag itself; without both tags there is no reasoning
    if closed or start.startswith(THINK):
        return said.lstrip("\n") if closed else "", thought.strip("\n")
    return text, ""


def _message(text: str, refusal: Any, *, incomplete: bool) -> Item:
    item = message_item(text)
    if incomplete:
        item["status"] = "incomplete"
    if refusal:
        said = item["content"] if text else []
        item["content"] = [*said, {"type": "refusal", "refusal": str(refusal)}]
    return item


def _function_call(call: Any, completion: Any) -> Item:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _garbage("one of its tool calls names no function", completion)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some endpoints return an object
        arguments = orjson.dumps(arguments or {}).decode()
    return function_call_item(function["name"], arguments, call.get("id") or new_id("call"))


def _usage(given: Any) -> JsonObject:
    usage = as_object(given)
    read, written = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    cached = count(usage.get("prompt_tokens_details"), "cached_tokens")
    thought = count(usage.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": count(usage, "total_tokens") or read + written,
    }


def _garbage(what: str, completion: Any) -> ModelError:
    return ModelError(f"not a chat completion: {what}", body=quote_json(completion), retryable=True)
