"""Functions on Responses-API objects as plain JSON.

A *response* is a Responses-API object, an *item* one element of its `output`. Unknown fields and
malformed items are ignored.
"""

import json
import re
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeGuard

import orjson

from .items import track
from .session import fresh_id

JsonObject = dict[str, Any]
"""A JSON object as Python holds it."""
"""A JSON object that is passed on unread."""

Item = JsonObject

TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)

USAGE_DETAILS = {
    "input_tokens_details": ("cached_tokens", "cache_write_tokens"),
    "output_tokens_details": ("reasoning_tokens",),
}
"""Counts that the OpenAI SDK's `Response` requires and most endpoints leave out."""

USAGE_COUNTS = ("input_tokens", "output_tokens", "total_tokens")

NO_USAGE: JsonObject = dict.fromkeys(USAGE_COUNTS, 0)
NO_DETAILS: JsonObject = {
    details: dict.fromkeys(names, 0) for details, names in USAGE_DETAILS.items()
}

OF_USAGE = frozenset({*USAGE_COUNTS, *USAGE_DETAILS})
"""Fields of a usage that this program knows."""

PROVIDER_DATA, ENCRYPTED = "provider_data", "encrypted_content"
"""Fields of an item that only the endpoint which attached them can read; see
`endpoints.provider_data`."""

CUT_OFF, FILTERED = "max_output_tokens", "content_filter"
"""Values of `incomplete_details.reason` in the Responses API; others are finish reasons that an
endpoint made up."""

USER_CALLS = "user_calls"
"""Field of a user's message: the calls of the user's own tools before it, each an object with
`name`, `arguments` and `output`."""

OPAQUE = frozenset({PROVIDER_DATA, ENCRYPTED})

WHOLE_NUMBER = re.compile(r"\d{1,16}(\.0*)?", re.ASCII)

MOST_TOKENS = 1 << 53
"""Larger numbers lose digits in programs that read all numbers as floats."""


DEEPEST = 170
"""Levels that a JSON value may have: a line has some more, and pydantic reads 200."""

ENCODED = 254
"""Levels that orjson writes."""

LONG = 16_000
"""Bytes of JSON from which brackets are counted with `find`."""

QUOTED = 1 << 14
"""Characters of a text, and items of a list, that an error quotes."""

NO_BRACKETS = bytes(set(range(256)) - set(b"[{"))
"""All bytes but opening brackets: what is left without them is counted in one pass."""


def is_too_deep(raw: bytes, value: Any) -> bool:
    """Whether a JSON value, given as bytes too, has more than about DEEPEST levels."""
    if not has_more_brackets(raw, DEEPEST):
        return False
    for _ in range(ENCODED - DEEPEST):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


def has_more_brackets(raw: bytes, number: int) -> bool:
    """Whether JSON has more opening brackets than this. Token ids are long and have few: there
    `find` is fifty times as fast as `count`."""
    if len(raw) < LONG:
        return len(raw.translate(None, NO_BRACKETS)) > number
    for bracket in (b"[", b"{"):
        at = raw.find(bracket)
        while at >= 0:
            if number == 0:
                return True
            number -= 1
            at = raw.find(bracket, at + 1)
    return False


def input_items(params: Mapping[str, Any]) -> list[Item]:
    """`input` as a list of items; it may be a string or a list.

    Example:

        print(rk.input_items({"input": "What is 2 + 2?"}))
    """
    given = params.get("input", [])
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)


def output_items(response: Mapping[str, Any]) -> list[Item]:
    """The items of a response.

    Example:

        print(rk.output_items(rk.make_response("m", [rk.message_item("4")], {})))
    """
    found = response.get("output")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def is_of_model(item: Mapping[str, Any]) -> bool:
    """Whether an item is a part of what the model said."""
    kind = item.get("type", "message")
    is_message = kind == "message" and item.get("role") == "assistant"
    return is_message or kind in ("reasoning", "function_call")


def has_provider_data(raw: bytes) -> bool:
    """Whether JSON may hold what an endpoint has attached to a turn."""
    return b'"provider_data"' in raw or b'"encrypted_content"' in raw


def provider_data_in(response: Any) -> list[JsonObject]:
    """What an endpoint has attached to the items of a response."""
    items = output_items(as_object(response))
    return [{name: item[name] for name in OPAQUE & item.keys()} for item in items]


def without_provider_data(response: JsonObject, where: str = "output") -> JsonObject:
    """A copy of a response, or of create params, for readers other than its endpoint."""
    items = response.get(where)
    if not isinstance(items, list):
        return response
    output = [
        {name: value for name, value in item.items() if name not in OPAQUE}
        if isinstance(item, dict)
        else item
        for item in items
    ]
    return {**response, where: output}


def function_calls(items: Iterable[Item]) -> list[Item]:
    """The function calls among items, in order.

    Example:

        print(rk.function_calls([rk.function_call_item("add", '{"a": 2}')])[0]["name"])
    """
    return [item for item in items if item.get("type") == "function_call"]


def pair_outputs(items: Iterable[Item]) -> list[tuple[Item, Item | None]]:
    """The function calls, in order, each with its output item; None for a call that was not
    executed. Some endpoints give several calls one id: the nth of them has the nth output."""
    items = list(items)
    outputs: dict[Any, deque[Item]] = {}
    for item in items:
        if item.get("type") == "function_call_output":
            outputs.setdefault(item.get("call_id"), deque()).append(item)
    found = ((call, outputs.get(call.get("call_id"))) for call in function_calls(items))
    return [(call, waiting.popleft() if waiting else None) for call, waiting in found]


def pair_calls(items: Iterable[Item]) -> list[tuple[Item, str]]:
    """The calls that were executed, in order, each with its output text: those of the policy, and
    those of a simulated user."""
    items = list(items)
    outputs = {id(call): output for call, output in pair_outputs(items)}
    found: list[tuple[Item, str]] = []
    for call in list_calls(items):
        output = outputs.get(id(call), call)  # a user's call has its output itself
        if output is not None:
            found.append((call, "\n".join(content_texts(output.get("output")))))
    return found


def list_calls(items: Iterable[Item]) -> list[Item]:
    """The calls of the policy, executed or not, and those of a simulated user, in order."""
    found: list[Item] = []
    for item in items:
        if item.get("type") == "function_call":
            found.append(item)
        elif item.get("role") == "user" and isinstance(calls := item.get(USER_CALLS), list):
            found += [call for call in calls if isinstance(call, dict)]
    return found


def find_offered_tools(params: Mapping[str, Any], response: Mapping[str, Any]) -> list[Item]:
    """The tools of a request: those of the row's create params as they are, and what the agent has
    added, such as the tools of the resources server. A response says which were sent."""
    given = (each.get("tools") for each in (params, response))
    own, sent = (each if isinstance(each, list) else [] for each in given)
    names = {tool.get("name") for tool in own if isinstance(tool, dict)} - {None}
    return own + [
        tool
        for tool in sent
        if isinstance(tool, dict) and tool not in own and tool.get("name") not in names
    ]


def output_text(response: Mapping[str, Any]) -> str:
    """The text of every assistant message of a response, joined by newlines.

    Example:

        print(rk.output_text(rk.make_response("m", [rk.message_item("4")], {})))
    """
    return assistant_text(output_items(response))


def assistant_text(items: Iterable[Item]) -> str:
    """The text of every assistant message among the items, joined by newlines."""
    texts: list[str] = []
    for item in items:
        if item.get("type") == "message" and item.get("role") == "assistant":
            texts += content_texts(item.get("content"))
    return "\n".join(texts)


def content_texts(content: Any) -> list[str]:
    """The text parts of a message's content, which may be a string or a list of parts.

    Example:

        print(rk.content_texts([{"type": "input_text", "text": "2 + 2"}]))
    """
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    return [
        text
        for part in content
        if isinstance(part, dict) and isinstance(text := part.get("text"), str)
    ]


def reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """The texts of a reasoning item: its content or, without one, its summary."""
    return content_texts(item.get("content")) or content_texts(item.get("summary"))


def sum_usage(usages: Iterable[Mapping[str, Any] | None]) -> JsonObject:
    """The sums of the token counts, including nested details. Values of other types are left
    out."""
    each = list(map(as_object, usages))
    total: JsonObject = dict(NO_USAGE)
    if len(each) == 1 and OF_USAGE.issuperset(one := each[0]) and _is_sound(one):
        for name in USAGE_COUNTS:
            total[name] = one[name]
        for name, none in NO_DETAILS.items():
            total[name] = {**none, **(one.get(name) or {})}
        return total
    for name, none in NO_DETAILS.items():
        total[name] = dict(none)
    for usage in each:
        _add_numbers(total, usage)
    return total


def _add_numbers(total: JsonObject, more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        so_far = total.get(key)
        if isinstance(value, (int, float)):
            if not isinstance(so_far, dict):
                total[key] = (so_far or 0) + value
        elif isinstance(value, dict) and (so_far is None or isinstance(so_far, dict)):
            _add_numbers(total.setdefault(key, {}), value)


def mend_usage(usage: Any) -> JsonObject | None:
    """The usage with its counts as whole numbers, without known counts and details of wrong types;
    None if it is no object."""
    if not isinstance(usage, dict):
        return None
    if _is_sound(usage):
        return usage
    mended = _mend_counts(usage, USAGE_COUNTS)
    for details, names in USAGE_DETAILS.items():
        if isinstance(found := mended.get(details), dict):
            mended[details] = _mend_counts(found, names)
        elif found is not None:
            del mended[details]
    return mended


def _mend_counts(fields: Mapping[str, Any], names: Container[str]) -> JsonObject:
    read = {name: read_count(value) if name in names else value for name, value in fields.items()}
    return {name: value for name, value in read.items() if value is not None or name not in names}


def _is_sound(usage: Mapping[str, Any]) -> bool:
    """Whether all counts are there and all numbers are plain; then nothing needs a closer look."""
    for name in USAGE_COUNTS:
        number = usage.get(name)
        if type(number) is not int or not 0 <= number < MOST_TOKENS:
            return False
    for name in USAGE_DETAILS:
        if (details := usage.get(name)) is not None:
            if type(details) is not dict:
                return False
            for number in details.values():
                if type(number) is not int or not 0 <= number < MOST_TOKENS:
                    return False
    return True


def is_count(value: Any) -> TypeGuard[int]:
    """Whether the value can be a number of tokens."""
    return isinstance(value, int) and 0 <= value < MOST_TOKENS


def read_count(value: Any) -> int | None:
    """A number of tokens, which some endpoints write as a float or as a text; None if it is
    none."""
    if isinstance(value, str) and WHOLE_NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if is_count(value) else None


def count(usage: Any, name: str) -> int:
    """This number of tokens; 0 if it is missing or none."""
    found = as_object(usage).get(name)
    return (found if is_count(found) else read_count(found)) or 0


def as_object(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def total_tokens(response: Mapping[str, Any]) -> int:
    """`total_tokens` of the response's usage; 0 if it is missing."""
    usage = response.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) else 0


def quote_json(value: Any) -> str:
    """A value as JSON for an error, with only the start of long texts and lists."""
    return orjson.dumps(_shorten(value), default=str).decode()


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return value[:QUOTED]
    if isinstance(value, dict):
        return {_shorten(key): _shorten(each) for key, each in islice(value.items(), QUOTED)}
    return [_shorten(each) for each in value[:QUOTED]] if isinstance(value, list) else value


def message_item(text: str) -> Item:
    """A message of the assistant.

    Example:

        print(rk.message_item("4")["content"][0]["text"])
    """
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": new_id("msg"),
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def function_call_item(name: str, arguments: str, call_id: str | None = None) -> Item:
    """A call of a tool; `arguments` is JSON text, and `call_id` a new one by default.

    Example:

        print(rk.function_call_item("add", '{"a": 2, "b": 2}')["call_id"])
    """
    return {
        "type": "function_call",
        "id": new_id("fc"),
        "call_id": call_id or new_id("call"),
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def function_call_output(call_id: str, output: str) -> Item:
    """What a tool returned for a call.

    Example:

        call = rk.function_call_item("add", '{"a": 2, "b": 2}')
        print(rk.function_call_output(call["call_id"], "4"))
    """
    item = {
        "type": "function_call_output",
        "id": new_id("fco"),
        "call_id": call_id,
        "output": output,
        "status": "completed",
    }
    return track(item)


def reasoning_item(text: str) -> Item:
    """The reasoning of a model, as a summary.

    Example:

        print(rk.reasoning_item("Two and two make four."))
    """
    return {
        "type": "reasoning",
        "id": new_id("rs"),
        "summary": [{"type": "summary_text", "text": text}],
    }


def make_response(
    model: str,
    output: list[Item],
    usage: Mapping[str, Any] | None,
    *,
    incomplete_reason: str | None = None,
    params: Mapping[str, Any] | None = None,
) -> JsonObject:
    """A Responses object that the OpenAI SDK's `Response` accepts. `incomplete_reason` is the API's
    `incomplete_details.reason`.

    Example:

        usage = {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}
        print(rk.make_response("my_model", [rk.message_item("4")], usage)["status"])
    """
    params = params or {}
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if incomplete_reason else "completed",
        "model": model,
        "output": output,
        "usage": sum_usage([usage]),
        "incomplete_details": {"reason": incomplete_reason} if incomplete_reason else None,
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "tool_choice": params.get("tool_choice", "auto"),
        "tools": params.get("tools", []),
    }


def new_id(prefix: str) -> str:
    return f"{prefix}_{fresh_id()}"


def find_tool_calls(text: str) -> Iterator[tuple[re.Match[str], Item]]:
    """The calls in a generated text, as Qwen and Hermes models write them, with their places. What
    does not parse is none."""
    for match in TOOL_CALL.finditer(text):
        try:
            call = json.loads(match[1])
        except ValueError:
            continue
        found = call if isinstance(call, dict) else {}
        name, given = found.get("name"), found.get("arguments")
        if isinstance(name, str) and isinstance(given, dict):
            yield match, function_call_item(name, json.dumps(given, ensure_ascii=False))
