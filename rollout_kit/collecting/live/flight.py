"""What a rollout in flight has done so far, from the turns that its agent has reported."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...responses import as_object, output_items, total_tokens
from ...store.steps import describe_use, divide, shorten
from ...types import JsonObject

MAX_TURNS = 200
"""Newest turns that are described."""

MAX_TEXT = 600
"""Characters of what the model says."""


def describe_flight(turns: Iterable[Mapping[str, Any]]) -> list[JsonObject]:
    """The turns from the first to the newest, as far as they are described."""
    known = [as_object(turn.get("response")) for turn in turns]
    first = max(0, len(known) - MAX_TURNS)
    return [_describe(number, response) for number, response in enumerate(known[first:], first + 1)]


def _describe(number: int, response: Mapping[str, Any]) -> JsonObject:
    steps = divide(output_items(response))
    return {
        "number": number,
        "says": shorten("\n".join(step.text for step in steps), MAX_TEXT),
        "tools": [describe_use(tool) for step in steps for tool in step.tools],
        "tokens": total_tokens(response),
    }


def name_last(turns: list[JsonObject]) -> str:
    """The newest turn on one line; empty if there is none."""
    if not turns:
        return ""
    [last] = describe_flight(turns[-1:])
    tools = "; ".join(f"{tool['name']} {tool['argument']}".strip() for tool in last["tools"])
    return shorten(tools or last["says"])
