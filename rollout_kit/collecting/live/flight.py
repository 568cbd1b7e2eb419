"""What a rollout in flight has done so far, from the turns that its agent has reported."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...responses import as_object, content_texts, output_items, total_tokens
from ...store.steps import describe_use, divide, is_returned, shorten
from ...types import JsonObject

MAX_TURNS = 200
"""Newest turns that are described."""

MAX_TEXT = 600
"""Characters of what the model says."""


def describe_flight(
    turns: Iterable[Mapping[str, Any]], returned: Mapping[str, Sequence[JsonObject]] | None = None
) -> list[JsonObject]:
    """The turns from the first to the newest, as far as they are described. `returned` is what came
    back for them: request → items."""
    known = list(turns)
    first = max(0, len(known) - MAX_TURNS)
    return [
        _describe(number, turn, (returned or {}).get(turn.get("request", ""), ()))
        for number, turn in enumerate(known[first:], first + 1)
    ]


def _describe(number: int, turn: Mapping[str, Any], returned: Sequence[JsonObject]) -> JsonObject:
    response = as_object(turn.get("response"))
    outputs = [item for item in returned if is_returned(item)]
    messages = [item for item in returned if not is_returned(item)]
    steps = divide([*output_items(response), *outputs])
    tools = [tool for step in steps for tool in step.tools]
    return {
        "number": number,
        "says": shorten("\n".join(step.text for step in steps), MAX_TEXT),
        "tools": [{**describe_use(tool), "output": tool.output} for tool in tools],
        "answer": "\n".join(text for item in messages for text in content_texts(item["content"])),
        "tokens": total_tokens(response),
    }


def name_last(turns: list[JsonObject]) -> str:
    """The newest turn on one line; empty if there is none."""
    if not turns:
        return ""
    [last] = describe_flight(turns[-1:])
    tools = "; ".join(f"{tool['name']} {tool['argument']}".strip() for tool in last["tools"])
    return shorten(tools or last["says"])
