"""Where the prompt cache is written, so that the next request reads it.

The endpoint looks a prefix up at each mark, and at the twenty blocks before it. A mark costs
nothing by itself: what is written costs a little more than other input, what is read a fraction.
"""

from typing import Any, Literal

from rollout_kit.types import JsonObject

Caching = Literal["auto", "all", "off"]

Ttl = Literal["5m", "1h"]

MARKS_OF_MESSAGES = 2
"""The end of this request, and that of the last one: a turn of more than twenty blocks would hide
it. Two more marks are those of tools and system; four are allowed."""


def mark_prefix(body: JsonObject, caching: Caching, ttl: Ttl) -> None:
    """Mark the ends of the tools, of the system prompt and of the conversation."""
    if caching == "off":
        return
    mark = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    for name in ("tools", "system"):
        if isinstance(blocks := body.get(name), list) and blocks:
            body[name] = _mark_last(blocks, mark)
    if caching == "all" or _goes_on(body):
        _mark_messages(body["messages"], mark)


def _goes_on(body: JsonObject) -> bool:
    """Whether another turn is likely to read what this one writes."""
    has_tools = bool(body.get("tools")) and body.get("tool_choice") != {"type": "none"}
    return has_tools or any(each["role"] == "assistant" for each in body["messages"])


def _mark_messages(messages: list[JsonObject], mark: JsonObject) -> None:
    left = MARKS_OF_MESSAGES
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        if left and message["role"] == "user":
            messages[number] = {**message, "content": _mark_last(message["content"], mark)}
            left -= 1


def _mark_last(blocks: list[Any], mark: JsonObject) -> list[Any]:
    return [*blocks[:-1], {**blocks[-1], "cache_control": mark}]
