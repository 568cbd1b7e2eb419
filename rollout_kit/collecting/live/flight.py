"""What a rollout in flight has done so far, from the turns that its agent has reported."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...responses import as_object, function_calls, output_text, total_tokens
from ...store.steps import first_argument, shorten
from ...types import JsonObject

MAX_TURNS = 200
"""Newest turns that are described."""

MAX_TEXT = 600
"""Characters of what the model says."""


def describe_flight(turns: Iterable[Mapping[str, Any]]) -> list[JsonObject]:
    """The turns from the first to the newest, as far as they are described."""
    known = [as_object(turn.get("response")) for turn in turns]
    first = max(0, len(known) - MAX_TURNS)
    return [
        {
            "number": number,
            "says": shorten(output_text(response), MAX_TEXT),
            "tools": [
                {
                    "name": shorten(str(call.get("name")), 60),
                    "argument": first_argument(str(call.get("arguments"))),
                }
                for call in function_calls(response.get("output") or ())
            ],
            "tokens": total_tokens(response),
        }
        for number, response in enumerate(known[first:], first + 1)
    ]


def name_last(turns: list[JsonObject]) -> str:
    """The newest turn on one line; empty if there is none."""
    if not turns:
        return ""
    [last] = describe_flight(turns[-1:])
    tools = "; ".join(f"{tool['name']} {tool['argument']}".strip() for tool in last["tools"])
    return shorten(tools or last["says"])
