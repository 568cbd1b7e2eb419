"""What one run has done so far, in a few counters."""

from collections import Counter
from dataclasses import dataclass, field

from ...errors import RolloutError
from ...types import Failure, Outcome, Rollout, Unverified

REASON_CHARS = 200
"""Characters of an error that make it a reason of its own."""


@dataclass(slots=True)
class Tally:
    """Counts of one run. `finished` = rollouts + failed + unverified."""

    finished: int = 0
    rollouts: int = 0
    tokens: int = 0
    output_tokens: int = 0
    failed: int = 0
    refused: int = 0
    """Permanent failures among those that failed."""
    unverified: int = 0
    scored: int = 0
    reward: float = 0.0
    """Sum over the scored rollouts."""
    gauges: dict[str, float] = field(default_factory=dict)
    """Figures of what works beside the run, such as a trainer, by the names that trackers use."""
    alarms: list[str] = field(default_factory=list)
    """What a person should look at, the last one last."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Error → rollouts without a result because of it."""

    @property
    def mean_reward(self) -> float | None:
        return self.reward / self.scored if self.scored else None

    def take(self, outcome: Outcome) -> bool:
        """Count an outcome; False for a response whose verdict is still to come."""
        match outcome:
            case Rollout(info=info, head=head):
                self.rollouts += 1
                self.tokens += info.total_tokens
                self.output_tokens += info.output_tokens
                if (reward := head.get("reward")) is not None:
                    self.scored += 1
                    self.reward += reward
            case Failure(error=error):
                self.failed += 1
                self.refused += error.terminal
                self._count_reason(error)
            case Unverified(error=error) if error is not None:
                self.unverified += 1
                self._count_reason(error)
            case _:
                return False
        self.finished += 1
        return True

    def _count_reason(self, error: RolloutError) -> None:
        self.reasons[f"{error}"[:REASON_CHARS]] += 1
