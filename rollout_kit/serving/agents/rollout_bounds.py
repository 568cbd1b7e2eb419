"""Limits of one rollout. They mean the same for an agent's calls and for those of its judges."""

from pydantic import BaseModel, ConfigDict, Field

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
