"""What answered and refused requests tell about the number in flight. Pure."""

import math
from dataclasses import dataclass

SLOWER = 2.0
"""Doubling ends once answers take this many times as long as at best: then they wait in a queue."""

SETTLED = 8
"""Answers whose mean time is compared."""

REFUSED_S = 1.5
"""Refusals of this time belong to one cut; refused requests are sent again later than that."""

MOST_REFUSED = 5
"""After as many cuts in a row, refusals have another cause than the number in flight."""

CALM_S, CALMEST_S = 30.0, 600.0
"""The limit stays this long at what an endpoint holds that refused more; doubled each time."""


@dataclass(slots=True)
class AnswerTimes:
    """Answered requests, or finished rollouts where requests are not counted."""

    are_counted: bool = False
    """Whether the model servers count answered requests."""
    due: float = 0.0
    """Those that the limit has not grown by yet."""
    mean_s: float = 0.0
    """Of the latest ones; 0 if unknown."""
    are_slower: bool = False
    _best_s: float = math.inf
    _number: float = 0.0
    _seconds: float = 0.0

    def add(self, number: float, seconds: float, limit: float) -> None:
        """Compare the times of answers, once there are enough."""
        self._number += number
        self._seconds += seconds
        if not self._number:
            return
        if not self.mean_s or self._number >= max(SETTLED, limit / 2):
            self.mean_s = self._seconds / self._number
            self.are_slower = self.mean_s >= SLOWER * self._best_s
            if self._number >= SETTLED:
                self._best_s = min(self._best_s, self.mean_s)
            self._number = self._seconds = 0.0

    def take(self, limit: float, since: float) -> float:
        """Take what a limit can turn over in `since` seconds."""
        self.due = min(self.due, limit)
        number = min(self.due, limit * since / self.mean_s) if self.mean_s else self.due
        self.due -= number
        return number


@dataclass(slots=True)
class Refusals:
    """Requests that were refused while more was in flight than an endpoint holds."""

    number: float = 0.0
    in_flight: int = 0
    """`number` of `in_flight` were refused since `began`."""
    began: float = -math.inf
    calm_s: float = CALM_S
    """How long to stay at what is held."""
    _latest: float = -math.inf
    _num_cuts: int = 0

    def add(self, now: float, refused: float, in_flight: int, limit: int) -> bool:
        """Count refusals; return whether they say how much is too much. What was begun before a
        cut is refused again and again, and says nothing."""
        is_calm, self._latest = now - self._latest > CALM_S, now
        if now - self.began <= REFUSED_S:
            self.number += refused
            return True
        self._num_cuts = 0 if is_calm else self._num_cuts
        if in_flight > limit or self._num_cuts >= MOST_REFUSED:
            return False
        if math.isfinite(self.began):
            self.calm_s = min(CALMEST_S, 2 * self.calm_s)
        self._num_cuts += 1
        self.number, self.in_flight, self.began = refused, in_flight, now
        return True
