"""Objects of a program, or of a suite, in place of those that the keys of a command describe."""

from dataclasses import dataclass
from typing import Any

from ..config.keys import LimitsConfig, Parallelism
from ..serving.transport.retry import RetryPolicy
from ..types import OutcomeSink
from .cheapest.ways import Ways
from .pacing.budget import Budget
from .pacing.limiter import Limiter
from .parallel import ParallelLimit, SharedLimit


@dataclass(frozen=True, slots=True)
class Parts:
    """What is given; None: as the keys say."""

    limiter: Limiter | None = None
    budget: Budget | None = None
    retry: RetryPolicy | None = None
    sink: OutcomeSink | None = None
    shared: SharedLimit | None = None
    """The limit on what is in flight that it shares with other runs, in place of `limiter`."""

    def make_limit(self, asked: Parallelism) -> ParallelLimit:
        """The limit on what is in flight."""
        return self.shared or ParallelLimit(asked, self.limiter)

    def make_budget(self, command: LimitsConfig) -> Budget:
        """What the run may use."""
        return self.budget or Budget(command.max_cost_usd, command.max_total_tokens)

    def of_runner(self, ways: Ways) -> dict[str, Any]:
        """Those that concern single rollouts, and the ways of their requests."""
        own = {"ways": ways} if ways.is_on else {}
        return own if self.retry is None else {**own, "retry": self.retry}
