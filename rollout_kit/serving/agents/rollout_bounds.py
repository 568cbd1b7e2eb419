"""Limits of one rollout. They mean the same for an agent's calls and for those of its judges."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ...errors import ModelError
from ...responses import count
from ...session import Spent

OVER_LIMIT = "rollout_limit"
"""Why a rollout ends that has reached one of its limits."""


class RolloutBounds(BaseModel):
    """Limits of one rollout, over all of its model calls. They are checked before each call but the
    first turn of the policy and of the user."""

    model_config = ConfigDict(extra="forbid")

    calls: int | None = Field(None, ge=1, description="Calls of models.")
    tokens: int | None = Field(None, ge=1, description="Tokens of prompts and answers.")
    cost_usd: float | None = Field(None, gt=0, description="US dollars.")
    seconds: float | None = Field(None, gt=0, description="Time since the first call.")

    def find_reached(self, *, calls: int, tokens: int, cost_usd: float, seconds: float) -> str:
        """The name of the first limit that these values reach; empty if there is none."""
        spent = {"calls": calls, "tokens": tokens, "cost_usd": cost_usd, "seconds": seconds}
        for name, value in spent.items():
            most = getattr(self, name)
            if most is not None and value >= most:
                return name
        return ""

    def find_reached_by(self, usages: Sequence[Any], cost: Spent, seconds: float) -> str:
        """The same for calls of these usages, at this cost; ModelError if what a limit is about is
        unknown."""
        if self.cost_usd is not None and cost.unpriced:
            raise _cannot_bound("cost_usd", "the price of a call", "set `prices` there")
        if self.tokens is not None and not all(map(_has_total, usages)):
            raise _cannot_bound("tokens", "the usage of a call", "leave the limit out")
        return self.find_reached(
            calls=len(usages),
            tokens=sum(count(usage, "total_tokens") for usage in usages),
            cost_usd=cost.usd,
            seconds=seconds,
        )


def _has_total(usage: Any) -> bool:
    return isinstance(usage, dict) and "total_tokens" in usage


def _cannot_bound(name: str, what: str, how: str) -> ModelError:
    return ModelError(
        f"rollout_limits.{name}: the model server does not say {what}: {how}", retryable=False
    )
