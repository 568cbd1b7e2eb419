"""When going on is pointless: a pure judge of a run's first failures.

It only speaks before anything has succeeded: a wrong key, URL or model name, or a model that nobody
reaches, would fail every row. One row's trouble is never a reason to end the run.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ..errors import REFUSED, RolloutError

UNREACHED = frozenset({502, 503, 504})
"""Statuses of a server that is not there, or has nobody behind it."""

MIN_REFUSED = 8
"""Refusals that are the set-up's fault and not one row's."""

MIN_UNREACHED = 20
"""So many first rollouts must fail before the run gives up: fewer may be a server's hiccup."""


@dataclass(slots=True)
class GiveUp:
    """`models`: the servers whose refusals count; `owed`: rollouts that this run may send."""

    models: Collection[str | None]
    parallel: int
    owed: int
    succeeded: bool = False
    """Some rollout of these settings has come out well, in this run or an earlier one."""
    refused: int = 0
    unreached: int = 0

    def reason_after(self, error: RolloutError) -> str | None:
        """Why to stop now that another rollout has failed; None to go on."""
        if self.succeeded:
            return None
        self.refused += error.status in REFUSED and error.server in {*self.models, ""}
        self.unreached += error.status in UNREACHED
        if self.refused >= max(1, min(self.parallel, MIN_REFUSED, self.owed)):
            return (
                f"stopped: the first requests are refused with {error.status}: {error}\nCheck the"
                " key, the URL and the model's name."
            )
        if self.unreached >= max(self.parallel, MIN_UNREACHED):
            return (
                f"stopped: the first {self.unreached} rollouts all failed, the last one with:"
                f" {error}\nThe same command goes on once that is mended."
            )
        return None
