"""How many requests fit an engine or an endpoint, from what its model server reports. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ...types import JsonObject

QUARTER = 0.25
"""Share of the allowed output that a request is expected to use while nothing longer was seen."""

LETTERS = 4
"""Bytes of a prompt's JSON per token, roughly."""

FILLED = 0.85
"""Share of the key-value cache to fill; a fuller one is cut (`limiter.KV_HIGH`)."""

LENGTHS = ("max_output_tokens", "max_tokens", "max_completion_tokens")
"""Create params that bound an output."""


@dataclass(frozen=True, slots=True)
class Size:
    """Mean tokens of a run's first requests; `allowed` is None where the context bounds outputs."""

    prompt: float
    allowed: float | None

    @classmethod
    def of(cls, rows: Iterable[JsonObject]) -> "Size | None":
        """None without rows."""
        asked = [row.get("responses_create_params") or {} for row in rows]
        if not asked:
            return None
        prompts = [len(orjson.dumps(each, default=str)) / LETTERS for each in asked]
        bounds = [_bound(each) for each in asked]
        known = [bound for bound in bounds if bound is not None]
        allowed = sum(known) / len(known) if len(known) == len(bounds) else None
        return cls(sum(prompts) / len(prompts), allowed)

    def tokens(self, load: Mapping[str, Any]) -> float | None:
        """Tokens of one request at its end; None if its output is neither bounded nor known."""
        seen, context = load.get("output_tokens_each", 0.0), load.get("max_model_len")
        room = max(0.0, context - self.prompt) if context else None
        allowed = min((each for each in (self.allowed, room) if each is not None), default=None)
        if allowed is None and not seen:
            return None
        return self.prompt + max(seen, QUARTER * (allowed or 0.0))


def find_capacity(load: Mapping[str, Any]) -> float | None:
    """Requests that fit the engine, less those of others; None if it reports no capacity."""
    bounds = []
    if sequences := load.get("max_sequences"):
        bounds.append(sequences)
    if (cache := load.get("kv_cache_tokens")) and (each := load.get("tokens_each")):
        bounds.append(FILLED * cache / each)
    if not bounds:
        return None
    inside = load.get("engine_running", 0) + load.get("engine_waiting", 0)
    asked = load.get("running", 0) + load.get("waiting", 0)
    others = max(inside, asked) - load.get("in_flight", 0)
    return max(0.0, min(bounds) - max(0, others))


def find_width(load: Mapping[str, Any], answer_s: float) -> float | None:
    """Requests in flight that use up the endpoint's rate, if one takes `answer_s`; None if the rate
    is unknown."""
    bounds = []
    if requests := load.get("requests_per_minute"):
        bounds.append(requests / 60 * answer_s)
    if (tokens := load.get("tokens_per_minute")) and (each := load.get("tokens_each")):
        bounds.append(tokens / 60 * answer_s / each)
    return min(bounds, default=None)


def _bound(params: JsonObject) -> float | None:
    given = [params[name] for name in LENGTHS if isinstance(params.get(name), int | float)]
    return min(given, default=None)
