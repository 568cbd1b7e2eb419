"""The figures of a run that are read while it goes on, each computed in one place.

They come from the counters that the run keeps anyway; none costs more with more rollouts, except
the interval of the reward, which is the snapshot's.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...analysis.metrics.tally import Tally
from ...types import JsonObject
from ..pacing.bill import Bill
from ..pacing.bottleneck import Bottleneck
from ..pacing.limiter import Adaptive
from ..run import Run

BOTTLENECK_EVERY_S = 1.0
"""How often the bottleneck is computed anew."""


@dataclass(slots=True)
class RunFigures:
    """Of a run, or of a mere tally. `total` is None while it is not known."""

    run: Run | None = None
    tally: Tally = field(default_factory=Tally)
    bill: Bill | None = None
    """Cost of the run, if it is known."""
    generates: bool = True
    """Whether the tokens of a rollout are this run's."""
    total: int | None = None
    initial: int = 0
    """Rollouts of the total that were on disk before."""
    clock: Callable[[], float] = lambda: time.monotonic()
    began: float = 0.0
    ended: float | None = None
    bottleneck: Bottleneck | None = None
    _bottleneck_at: float = 0.0

    def start(self, total: int | None, initial: int, run: Run | None = None) -> None:
        """Start the clock; `run` gives the figures beyond the outcomes."""
        self.total, self.initial = total, initial
        self.began = self._bottleneck_at = self.clock()
        if run is not None:
            self.run, self.tally = run, run.tally
            self.bill, self.generates = run.runner.bill, run.source.generates

    def stop(self) -> None:
        self.ended = self.clock()

    @property
    def elapsed_s(self) -> float:
        return (self.clock() if self.ended is None else self.ended) - self.began

    @property
    def finished(self) -> int:
        """Rollouts that have ended, those of earlier runs among them."""
        return self.initial + self.tally.finished

    @property
    def wanted(self) -> int | None:
        """Rollouts that this run is to finish; None while that is not known yet."""
        return None if self.total is None else self.total - self.initial

    @property
    def reward(self) -> float | None:
        """The mean over this run."""
        return self.tally.reward / self.tally.scored if self.tally.scored else None

    @property
    def requests_429(self) -> int:
        """Requests of rollouts that have ended, refused by a rate limit."""
        bill = self.run.runner.bill if self.run else self.bill
        return bill.spent.throttled if bill else 0

    @property
    def rollouts_per_s(self) -> float:
        return self.tally.rollouts / max(self.elapsed_s, 1e-6)

    @property
    def output_tokens_per_s(self) -> float | None:
        """None for a run that generates nothing."""
        return self.tally.output_tokens / max(self.elapsed_s, 1e-6) if self.generates else None

    @property
    def moving_limit(self) -> int | None:
        """The limit on what is in flight, if it adapts."""
        limiter = self.run.limiter if self.run else None
        return limiter() if isinstance(limiter, Adaptive) else None

    @property
    def arm_rewards(self) -> dict[str, float]:
        """Arm → its mean reward, over all that is on disk."""
        return self.run.metrics.arm_rewards() if self.run else {}

    def cost_parts(self) -> dict[str, str]:
        """The cost in a progress line."""
        return self.bill.parts(*self._progress()) if self.bill else {}

    def cost(self) -> JsonObject | None:
        """The cost so far and its projection; None if nothing has a price."""
        if self.bill is None or self.bill.is_empty:
            return None
        return self.bill.figures(*self._progress())

    def look(self) -> None:
        """Compute the bottleneck anew, if that was not done in the last second."""
        now = self.clock()
        if self.run and now - self._bottleneck_at >= BOTTLENECK_EVERY_S:
            self._bottleneck_at, self.bottleneck = now, self.run.meter.stable_verdict()

    def _progress(self) -> tuple[int, int | None, float]:
        return self.tally.finished, self.wanted, self.elapsed_s
