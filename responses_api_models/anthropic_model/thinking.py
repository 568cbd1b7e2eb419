"""How much the model thinks: `reasoning` of the create params in the forms that Claude knows.

Models from 4.6 on decide themselves how long to think, at a named effort. Earlier ones take a
budget of tokens, which is a part of `max_tokens`.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from rollout_kit.serving.endpoints.completions import bad_request
from rollout_kit.types import JsonObject

ThinkingType = Literal["adaptive", "enabled"]

ADAPTIVE_SINCE = (4, 6)
"""First version that takes `adaptive`; the next one refuses a budget."""

EFFORTS = {"minimal": "low", **{each: each for each in ("low", "medium", "high", "xhigh", "max")}}
"""`reasoning.effort` → `output_config.effort`."""

BUDGETS = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 65_536,
}
"""`reasoning.effort` → tokens for thinking."""

LEAST = 1024
"""The endpoint refuses smaller budgets."""

KNOWN = frozenset({"effort", "summary", "generate_summary"})


def version_of(model: str) -> tuple[int, int] | None:
    """The version in the name of a Claude model; None if there is none, as in an alias."""
    numbers = [int(each) for each in re.findall(r"(?<!\d)\d{1,2}(?!\d)", model.rpartition("/")[2])]
    return (numbers[0], (*numbers[1:], 0)[0]) if numbers else None


def form_for(model: str) -> ThinkingType:
    """The form that a model takes."""
    if "claude" not in model.lower():
        return "enabled"  # other providers of this API follow the older form
    version = version_of(model)
    return "adaptive" if version is None or version >= ADAPTIVE_SINCE else "enabled"


def write_thinking(
    reasoning: Mapping[str, Any], form: ThinkingType, max_tokens: int | None
) -> JsonObject:
    """`thinking` and `output_config` for a row's `reasoning`; TaskError if there is no such
    effort. `max_tokens` are those that the row allows."""
    given = {key: value for key, value in reasoning.items() if value is not None}
    if unknown := sorted(given.keys() - KNOWN):
        raise bad_request(f"reasoning.{unknown[0]}: the Messages API has nothing like it")
    effort, wants_text = given.get("effort"), bool(given.keys() & {"summary", "generate_summary"})
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if effort not in (None, *EFFORTS):
        known = ", ".join(["none", *EFFORTS])
        raise bad_request(f"reasoning.effort: there is no {effort!r}; choose one of {known}")
    if effort is None and not wants_text:
        return {}
    thinking: JsonObject = {"type": form, **({"display": "summarized"} if wants_text else {})}
    if form == "enabled":
        return {"thinking": {**thinking, "budget_tokens": _budget(effort or "medium", max_tokens)}}
    return {
        "thinking": thinking,
        **({"output_config": {"effort": EFFORTS[effort]}} if effort else {}),
    }


def _budget(effort: str, max_tokens: int | None) -> int:
    """Tokens for thinking: at most half of those that the row allows."""
    if max_tokens is None:
        return BUDGETS[effort]
    if max_tokens <= LEAST:
        raise bad_request(
            f"max_output_tokens: thinking takes {LEAST:,} tokens at least, and the answer comes"
            f" after it; {max_tokens:,} are too few for reasoning.effort '{effort}'"
        )
    return max(LEAST, min(BUDGETS[effort], max_tokens // 2))
