"""Counting the tokens of a request at the endpoint, without an answer to it."""

from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from ...responses import as_object, is_count
from ...types import JsonObject


@dataclass(frozen=True, slots=True)
class Counter:
    """`path` stands behind that of the API; `params` are those of a request that count."""

    path: str
    params: tuple[str, ...]

    def select(self, body: JsonObject) -> JsonObject:
        """The part of a request that is counted."""
        return {name: body[name] for name in self.params if name in body}


COUNTERS = {
    "responses": Counter(
        "/input_tokens",
        (
            *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls"),
            *("reasoning", "text", "truncation", "previous_response_id", "conversation"),
        ),
    ),
    "messages": Counter(
        "/count_tokens",
        ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"),
    ),
}
"""API → how its endpoints count. Those of Chat Completions do not."""


def counter_of(api: str) -> Counter:
    """ModelError if the endpoints of an API cannot count."""
    if (found := COUNTERS.get(api)) is None:
        what = "an endpoint that has Chat Completions only counts no tokens"
        raise ModelError(what, status=404, retryable=False)
    return found


def read_count(payload: Any, url: str) -> int:
    """The number in a reply; ModelError if there is none."""
    counted = as_object(payload).get("input_tokens")
    if not is_count(counted):
        raise ModelError(f"{url} answered 200 without input_tokens", retryable=True)
    return counted
