"""The sampling settings of one response, parsed once from the create params."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_kit.errors import TaskError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 selects the likeliest token; `top_k` 0 and `top_p` 1 keep all tokens."""

    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


def read_sampling(
    params: Mapping[str, Any], *, temperature: float, max_output_tokens: int
) -> Sampling:
    """The sampling settings in the create params, with two defaults for missing or null ones."""
    return Sampling(
        temperature=_number(params, "temperature", temperature, "at least 0", lambda x: x >= 0),
        max_tokens=_integer(
            params, "max_output_tokens", max_output_tokens, "at least 1", lambda x: x >= 1
        ),
        top_p=_number(params, "top_p", 1.0, "above 0 and at most 1", lambda x: 0 < x <= 1),
        # -1 is vLLM's spelling of "all tokens"
        top_k=max(_integer(params, "top_k", 0, "-1 or more", lambda x: x >= -1), 0),
        seed=None
        if params.get("seed") is None
        else _integer(params, "seed", 0, "", lambda _: True),
    )


def _number(
    params: Mapping[str, Any],
    name: str,
    default: float,
    bounds: str,
    is_within: Callable[[float], bool],
) -> float:
    value = default if params.get(name) is None else params[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not is_within(value):
        raise TaskError(f"{name} must be a number {bounds}, got {value!r}", status=400)
    return float(value)


def _integer(
    params: Mapping[str, Any],
    name: str,
    default: int,
    bounds: str,
    is_within: Callable[[int], bool],
) -> int:
    value = default if params.get(name) is None else params[name]
    if not isinstance(value, int) or isinstance(value, bool) or not is_within(value):
        raise TaskError(
            f"{name} must be a whole number {bounds}".rstrip() + f", got {value!r}", status=400
        )
    return value
