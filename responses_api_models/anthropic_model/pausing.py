"""Turns that the endpoint pauses, since its own tools take long. Sent back as they are, they go on.

All pieces of a turn are one message: their blocks in order, and the sum of their usage.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from rollout_kit.responses import as_object
from rollout_kit.serving.hosted_model import Request
from rollout_kit.types import JsonObject

PAUSED = "pause_turn"

MOST = 20
"""A turn that is paused more often than this is incomplete, so that no row asks for ever."""


def is_paused(payload: Any) -> bool:
    """Whether an answer is a turn that goes on."""
    has_content = isinstance(as_object(payload).get("content"), list)
    return has_content and payload.get("stop_reason") == PAUSED


def go_on(asked: Request, pieces: Sequence[JsonObject]) -> Request:
    """The request for the rest of a turn."""
    raw = asked.raw if isinstance(asked.raw, bytes) else b"".join(asked.raw)
    body = orjson.loads(raw)
    body["messages"].append({"role": "assistant", "content": _blocks(pieces)})
    return replace(asked, raw=orjson.dumps(body))


def join(pieces: Sequence[JsonObject]) -> JsonObject:
    """The whole turn."""
    usage: JsonObject = {}
    for piece in pieces:
        _add(usage, as_object(piece.get("usage")))
    return {**pieces[-1], "content": _blocks(pieces), "usage": usage}


def _blocks(pieces: Sequence[JsonObject]) -> list[Any]:
    return [block for piece in pieces for block in piece["content"]]


def _add(total: JsonObject, more: Any) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _add(total.setdefault(name, {}), value)
        elif isinstance(value, int) and isinstance(total.get(name, 0), int):
            total[name] = total.get(name, 0) + value
        else:
            total[name] = value
