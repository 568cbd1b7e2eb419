"""When a run cannot succeed: a judge of its first failures.

It stops a run only before anything has succeeded: a wrong key, URL or model name, or a model that
is unreachable, fails every row. One row's failure never stops a run.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..errors import REFUSED, RolloutError
from ..types import Failure, Outcome, Rollout, Unverified

UNREACHED = frozenset({502, 503, 504})
"""Statuses of a server that is down, or of a gateway without one behind it."""

MIN_REFUSED = 8
"""Refusals that show a wrong set-up rather than a wrong row."""

MIN_UNREACHED = 20
"""Rollouts that must fail before an unreachable server ends the run; fewer may be a restart."""


@dataclass(slots=True)
class GiveUp:
    """`servers`: those whose refusals count; `owed()`: rollouts that this run may send."""

    servers: Collection[str | None]
    parallel: int
    owed: Callable[[], int]
    has_succeeded: bool = False
    """Whether a rollout of these settings succeeded, in this run or an earlier one."""
    refused: int = 0
    unreached: int = 0
    reason: str | None = None
    """Why to stop; None to go on."""

    def take(self, outcome: Outcome) -> None:
        match outcome:
            case Rollout():
                self.has_succeeded = True
            case Failure(error=error) | Unverified(error=error) if error and not self.has_succeeded:
                self._count(error)

    def _count(self, error: RolloutError) -> None:
        self.refused += error.status in REFUSED and error.server in {*self.servers, ""}
        self.unreached += error.status in UNREACHED
        if self.refused >= max(1, min(self.parallel, MIN_REFUSED, self.owed())):
            self.reason = (
                f"stopped: the first requests are refused with {error.status}: {error}\nCheck the"
                " key, the URL and the model's name."
            )
        elif self.unreached >= max(self.parallel, MIN_UNREACHED):
            self.reason = (
                f"stopped: the first {self.unreached} rollouts all failed, the last one with:"
                f" {error}\nThe same command goes on once that is mended."
            )
