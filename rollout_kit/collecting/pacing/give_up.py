"""When a run cannot succeed: a judge of its first failures.

It stops a run only before anything has succeeded: a wrong key, URL, model name or parameter, a
model that is unreachable, or a verifier with a bug fails every row. One row's failure never does.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ...errors import REFUSED, RolloutError, SessionLost, TaskError, VerifyError
from ...types import Failure, Outcome, Rollout, Unverified

UNREACHED = frozenset({502, 503, 504})
"""Statuses of a server that is down, or of a gateway without one behind it."""

MIN_REFUSED = 8
"""Refusals that show a wrong set-up rather than a wrong row."""

MIN_ALIKE = 8
"""Attempts that start first and must all fail for the same reason: then every row will. The first
failures would not show it: refusals come at once, and answers take long."""

MIN_UNREACHED = 20
"""Rollouts that must fail before an unreachable server ends the run; fewer may be a restart."""


@dataclass(slots=True)
class GiveUp:
    """`servers`: those whose refusals count; `owed()`: rollouts that this run may send;
    `settled()`: attempts in the order of their start, up to the first that has not ended."""

    servers: Collection[str | None]
    parallel: int
    owed: Callable[[], int]
    has_succeeded: bool = False
    """Whether a rollout of these settings succeeded, in this run or an earlier one."""
    has_verified: bool = False
    """Whether the present verifier has given a verdict, in this run or an earlier one."""
    settled: Callable[[], int] = lambda: 0
    refused: int = 0
    unreached: int = 0
    alike: Counter[tuple[str, int, str, str]] = field(default_factory=Counter)
    """Kind of failure → outcomes."""
    reason: str | None = None
    """Why to stop; None to go on."""

    def take(self, outcome: Outcome) -> None:
        match outcome:
            case Rollout(head=head):
                self.has_succeeded = True
                self.has_verified = self.has_verified or head.get("reward") is not None
            case Failure(error=error) | Unverified(error=error) if error:
                is_verdict = isinstance(error, VerifyError)
                if not self.has_succeeded:
                    self._count(error)
                if not (self.has_verified if is_verdict else self.has_succeeded):
                    self._compare(error)

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
                f" {error}\nStart that server, or correct its address. The same command then"
                " continues."
            )

    def _compare(self, error: RolloutError) -> None:
        """Stop once the attempts that started first have all failed for the same reason.

        Not by rows that were refused before a model call, nor by a server that may be restarting
        or has lost their sessions.
        """
        is_free = isinstance(error, TaskError) and error.server not in self.servers
        is_passing = isinstance(error, SessionLost) or error.status in UNREACHED
        if self.reason or is_free or is_passing:
            return
        self.alike[kind_of_failure(error)] += 1
        number = self.alike.total()
        if len(self.alike) > 1 or number < MIN_ALIKE or self.settled() < MIN_ALIKE:
            return
        what = "verdicts" if isinstance(error, VerifyError) else "rollouts"
        self.reason = (
            f"stopped: the first {number} {what} all failed alike, the last one with: {error}\n"
            "Mend that. The same command then continues. +stop_early=false continues in any case."
        )


def kind_of_failure(error: RolloutError) -> tuple[str, int, str, str]:
    """Server, status and the start of the message; with a traceback, the line that raised too.

    Values in the message differ from row to row.
    """
    start, _, rest = error.message.partition(": ")
    place = rest.rpartition(" (")[2] if error.traceback else ""
    return error.server, error.status, start, place
