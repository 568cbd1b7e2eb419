"""What came back for a turn: the outputs of its tools, or the answer of its environment.

An agent reports it with the turns of a rollout in progress, so that readers see it before the
rollout ends. Nothing continues from it, so only the beginning and the end of a text are kept.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from ...responses import Item, content_texts
from ...types import JsonObject

KEPT_END = 2_000
"""Characters that are kept of the beginning of a text, and of its end."""

MAX_RETURNED = 16
"""Items of one turn that are kept."""


def find_returned(items: Sequence[Item], *, has_calls: bool) -> list[Item]:
    """The items at the end of a request that came back for the last turn, which had calls or had
    none."""
    outputs, messages = list[Item](), list[Item]()
    for item in reversed(items):
        kind = _kind_of(item)
        if kind.endswith("_call_output"):
            outputs.append(item)
        elif not outputs and kind == "message" and item.get("role") == "user":
            messages.append(item)
        else:
            break
    return (outputs if has_calls and outputs else messages)[::-1]


def shorten_returned(items: Sequence[Item]) -> list[JsonObject]:
    """The first of the items, without the middle of long texts."""
    return [_shorten(item) for item in items[:MAX_RETURNED]]


def _shorten(item: Item) -> JsonObject:
    if (kind := _kind_of(item)) == "message":
        return {"type": kind, "role": "user", "content": shorten_value(item.get("content") or "")}
    kept = {name: item[name] for name in ("call_id", "id", "status") if item.get(name)}
    return {"type": kind, **kept, "output": shorten_value(item.get("output") or "")}


def shorten_value(value: Any) -> str:
    """A value as text, of a long one the beginning and the end."""
    texts = content_texts(value)
    text = "\n".join(texts) if texts else orjson.dumps(value).decode()
    if (left_out := len(text) - 2 * KEPT_END) <= 0:
        return text
    return f"{text[:KEPT_END]}\n… {left_out:,} more characters …\n{text[-KEPT_END:]}"


def _kind_of(item: Item) -> str:
    return str(item.get("type", "message"))
