"""Translate Responses requests to Chat Completions.

`to_chat` raises TaskError for what Chat Completions cannot express, and drops nothing silently.
Keys that have the same name in both APIs are passed on, and so are an endpoint's own parameters.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import orjson

from ...errors import TaskError
from ...responses import Item, content_texts, input_items, reasoning_texts
from ...types import JsonObject
from .provider_data import data_for, put_call_data

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

LOGPROBS = "message.output_text.logprobs"
"""Entry of the create param `include`: the log-prob of each token of the answer."""

MALFORMED = "malformed_arguments"
"""Name under which arguments that are no JSON object are shown to the model again."""


def to_chat(
    params: Mapping[str, Any],
    *,
    reasoning_field: ReasoningField | None = None,
    max_tokens_field: MaxTokensField = "max_completion_tokens",
    endpoint: str = "",
) -> JsonObject:
    """Responses create params as a chat completion request.

    Reasoning items of the input become the field `reasoning_field` of their assistant message.
    Those that come from this `endpoint` go back to it under the names that they came with, and so
    does what it attached to them. Without any name they are dropped.
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
    body["messages"] = _messages(given, reasoning_field, endpoint)
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
    if "top_logprobs" in given or LOGPROBS in given.get("include", ()):
        body["logprobs"] = True
    if "top_logprobs" in given:
        body["top_logprobs"] = given["top_logprobs"]
    return body


def _messages(
    given: Mapping[str, Any], reasoning_field: ReasoningField | None, endpoint: str
) -> list[JsonObject]:
    messages = _Messages(reasoning_field, endpoint)
    if instructions := given.get("instructions"):
        messages.add({"role": "system", "content": instructions})
    for item in input_items(given):
        match item.get("type", "message"):
            case "message" if item.get("role") == "assistant":
                messages.add_text(item)
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
    return messages.finish()


class _Messages:
    """Builds chat messages: the items of one assistant turn become one message."""

    def __init__(self, reasoning_field: ReasoningField | None, endpoint: str) -> None:
        self._done: list[JsonObject] = []
        self._reasoning_field, self._endpoint = reasoning_field, endpoint
        self._reasoning: dict[str, list[str]] = {}
        """Field of the message that comes → texts of the reasoning items before it."""
        self._attached: JsonObject = {}
        self._to_attach: list[tuple[JsonObject, JsonObject]] = []

    def finish(self) -> list[JsonObject]:
        """All messages, with what the endpoint has attached to them."""
        for message, fields in self._to_attach:
            message |= fields
        return self._done

    def add(self, message: JsonObject) -> None:
        self._reasoning.clear()
        self._attached = {}
        self._done.append(message)

    def add_text(self, item: Item) -> None:
        self._attached |= data_for(item, self._endpoint).get("message", {})
        # a message beside the calls of its turn must not come between the calls and their outputs
        message = self._open(lambda last: last.get("content") is None and "tool_calls" in last)
        message["content"], refusal = _assistant_content(item.get("content"))
        if refusal:
            message["refusal"] = refusal

    def add_call(self, item: Item) -> None:
        data = data_for(item, self._endpoint)
        self._attached |= data.get("message", {})
        message = self._open(lambda last: True)
        message.setdefault("content", None)
        function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if attached := data.get("call"):
            put_call_data(call, attached)
        message.setdefault("tool_calls", []).append(call)

    def add_reasoning(self, item: Item) -> None:
        data = data_for(item, self._endpoint)
        self._attached |= data.get("message", {})
        names = data.get("text_in", ())
        if self._reasoning_field and not (names and "endpoint" in data):
            names = (self._reasoning_field,)
        texts = reasoning_texts(item)
        for name in names:
            self._reasoning.setdefault(name, []).extend(texts)

    def _open(self, may_join: Callable[[JsonObject], bool]) -> JsonObject:
        """The assistant message of this turn: the last message if it fits, else a new one."""
        last = self._done[-1] if self._done else {}
        if last.get("role") != "assistant" or not may_join(last):
            last = {"role": "assistant"}
            self._done.append(last)
        for name, texts in self._reasoning.items():
            earlier = [last[name]] if name in last else []
            last[name] = "\n".join([*earlier, *texts])
        self._reasoning.clear()
        if self._attached:
            self._to_attach.append((last, self._attached))
            self._attached = {}
        return last


def sound_arguments(given: Any) -> str:
    """The arguments of an earlier call as a JSON object. Servers that parse them for their chat
    template would refuse the whole conversation for a mistake of the model."""
    text = given if isinstance(given, str) else ""
    if not text.strip():
        return "{}"
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps({MALFORMED: text}).decode()


def sound_calls(items: Iterable[Any]) -> list[Any]:
    """The items of a request, its calls with sound arguments."""
    return [
        {**item, "arguments": sound_arguments(item.get("arguments"))}
        if isinstance(item, dict) and item.get("type") == "function_call"
        else item
        for item in items
    ]


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
