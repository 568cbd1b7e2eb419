"""What a rollout in flight has done so far, from the turns that its agent has reported."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ...responses import as_object, content_texts, output_items, reasoning_texts, total_tokens
from ...serving.agents.returned_items import shorten_value
from ...store.steps import MAX_NAME, divide, first_argument, is_returned, parse_json, shorten
from ...types import JsonObject

MAX_TURNS = 200
"""Newest turns that are described."""

MAX_ARGUMENTS = 16
"""Arguments of a call that are shown."""


def describe_flight(
    turns: Sequence[Mapping[str, Any]],
    returned: Mapping[str, Sequence[JsonObject]] | None = None,
    since: int = 1,
) -> list[JsonObject]:
    """The turns from the number `since` to the newest, at most MAX_TURNS. Long texts have no
    middle. `returned` is what came back for them: request → items."""
    first = first_described(len(turns), since)
    return [
        _describe(number, turn, (returned or {}).get(turn.get("request", ""), ()))
        for number, turn in enumerate(turns[first - 1 :], first)
    ]


def first_described(number: int, since: int) -> int:
    """The first of so many turns that is described. A rollout with fewer turns than a reader
    knows has begun again: it is described from its first turn."""
    return max(1, number - MAX_TURNS + 1, since if since <= number else 1)


def _describe(number: int, turn: Mapping[str, Any], returned: Sequence[JsonObject]) -> JsonObject:
    response = as_object(turn.get("response"))
    items = output_items(response)
    reasons = [item for item in items if item.get("type") == "reasoning"]
    thoughts = [text for item in reasons for text in reasoning_texts(item)]
    outputs = [item for item in returned if is_returned(item)]
    messages = [item for item in returned if not is_returned(item)]
    steps = divide([*items, *outputs])
    tools = [tool for step in steps for tool in step.tools]
    return {
        "number": number,
        "reasoning": shorten_value("\n".join(thoughts)),
        "says": shorten_value("\n".join(step.text for step in steps)),
        "tools": [
            {
                "name": shorten(tool.name, MAX_NAME),
                "arguments": _describe_arguments(tool.arguments),
                "output": tool.output,
                "is_error": tool.is_error,
            }
            for tool in tools
        ],
        "answer": "\n".join(text for item in messages for text in content_texts(item["content"])),
        "tokens": total_tokens(response),
    }


def _describe_arguments(text: str) -> list[JsonObject]:
    """Name and text of each argument; one without a name if they are no JSON object."""
    found = parse_json(text)
    given = found.items() if isinstance(found, dict) else [("", text)] if text else []
    return [
        {"name": shorten(str(name), MAX_NAME), "text": shorten_value(value)}
        for name, value in islice(given, MAX_ARGUMENTS)
    ]


def name_last(turns: Sequence[Mapping[str, Any]]) -> str:
    """The newest turn on one line; empty if there is none."""
    if not turns:
        return ""
    steps = divide(output_items(as_object(turns[-1].get("response"))))
    tools = [
        f"{tool.name} {first_argument(tool.arguments)}" for step in steps for tool in step.tools
    ]
    return shorten("; ".join(tools) or "\n".join(step.text for step in steps))
