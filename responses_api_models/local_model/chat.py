"""Convert Responses-API items to chat messages, and generated text to items. Pure functions.

The order of keys is kept: a template writes tools and arguments in their order, and a small model
works only with the order that it was trained on.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from rollout_kit.errors import TaskError
from rollout_kit.responses import Item, find_tool_calls, input_items, message_item
from rollout_kit.serving.endpoints.chat import SERVER_SIDE
from rollout_kit.serving.endpoints.params import find_problems, find_unfollowed
from rollout_kit.types import JsonObject

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

TEXT_PARTS = frozenset({"input_text", "output_text", "text"})


def chat_messages(params: Mapping[str, Any]) -> list[JsonObject]:
    """`instructions` and `input` as chat messages; TaskError for unsupported items."""
    messages: list[JsonObject] = []
    if params.get("instructions"):
        messages.append({"role": "system", "content": _text(params["instructions"])})
    given = params.get("input")
    if not isinstance(given, str | list):
        raise _refused(f"input must be a string or a list of items, got {given!r:.80}")
    for item in input_items(params):
        _add_item(messages, item)
    if not any(message["role"] != "system" for message in messages):
        raise _refused("input has no message to answer")
    return messages


def _add_item(messages: list[JsonObject], item: Any) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else type(item).__name__
    if kind == "message" and item.get("role") in ROLES:
        messages.append({"role": ROLES[item["role"]], "content": _text(item.get("content"))})
    elif kind == "function_call":
        _add_call(messages, item)
    elif kind == "function_call_output":
        messages.append(
            {
                "role": "tool",
                "tool_call_id": item.get("call_id"),
                "content": _text(item.get("output")),
            }
        )
    elif kind == "message":
        raise _refused(f"input message has role {item.get('role')!r}; known: {', '.join(ROLES)}")
    elif kind != "reasoning":
        raise _refused(f"input item type {kind!r} is not one that this model can read")


def _add_call(messages: list[JsonObject], item: Item) -> None:
    """Add a call to the assistant message of its turn."""
    function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
    if not all(isinstance(value, str) for value in function.values()):
        raise _refused(f"function_call needs name and arguments as strings, got {function!r:.200}")
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refused(f"content must be a string or a list of parts, got {content!r:.80}")
    return "".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") in TEXT_PARTS:
        text = part.get("text")
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise _refused(f"content part {kind!r} is not text")


CANNOT = (
    *("stop", "logit_bias", "top_logprobs", "min_p", "chat_template_kwargs"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)
"""Create params that other models follow."""


def check_supported(params: Mapping[str, Any]) -> None:
    """Raise TaskError for params that this model cannot follow, instead of ignoring them."""
    for name, reason in chain(find_problems(params), find_unfollowed(params, CANNOT)):
        raise _refused(f"{name}: {reason}")
    for name in SERVER_SIDE:
        if params.get(name) is not None:
            raise _refused(f"{name}: this model stores no responses")
    if params.get("tool_choice") not in (None, "auto", "none"):
        raise _refused("tool_choice: this model cannot be made to call a tool; use auto or none")


def template_tools(params: Mapping[str, Any]) -> list[JsonObject] | None:
    """The Responses API's flat tools in the nested form of templates, without `strict`."""
    if params.get("tool_choice") == "none":
        return None
    return [_template_tool(tool) for tool in params.get("tools") or ()] or None


def _template_tool(tool: Any) -> JsonObject:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not tool.get("name"):
        raise _refused(f"tools must be functions with a name, got {tool!r:.200}")
    function = {
        key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None
    }
    return {"type": "function", "function": function}


def output_items(text: str) -> list[Item]:
    """Messages and function calls in the order of the text; never empty.

    A call that does not parse stays text.
    """
    items: list[Item] = []
    begin = 0
    for match, call in find_tool_calls(text):
        _add_message(items, text[begin : match.start()])
        items.append(call)
        begin = match.end()
    _add_message(items, text[begin:])
    return items or [message_item("")]


def _add_message(items: list[Item], text: str) -> None:
    if text.strip():
        items.append(message_item(text))


def _refused(message: str) -> TaskError:
    return TaskError(message, status=400)
