"""How long one request has waited for its answer, and may be throttled."""

from collections.abc import Callable

from ..errors import ModelError, RolloutError


class Waited:
    """A clock that stops while a streamed answer arrives and while the endpoint throttles, so that
    it measures waiting for answers only."""

    def __init__(self, now: Callable[[], float], max_throttled_s: float) -> None:
        self.left_throttled_s = max_throttled_s
        """Seconds for which the request may still be throttled."""
        self.refused: RolloutError | None = None
        """The last refusal because of a rate limit."""
        self._max_throttled_s = max_throttled_s
        self._now = now
        self._came_s = 0.0
        self._heard_at: float | None = None

    def __call__(self) -> float:
        return self._now() - self._came_s

    @property
    def refusal(self) -> RolloutError:
        """What a request ends with that was throttled for too long."""
        why = f"the rate limit let no request pass for {self._max_throttled_s:g} s"
        return self.refused or ModelError(why, status=429)

    def skip(self, seconds: float) -> None:
        """Leave out time that was lost to a rate limit."""
        self._came_s += seconds
        self.left_throttled_s = max(0.0, self.left_throttled_s - seconds)

    def begin(self) -> None:
        """A new try begins; nothing has arrived yet."""
        self._heard_at = None

    def hear(self) -> None:
        """A piece of the answer has arrived."""
        at = self._now()
        if self._heard_at is not None:
            self._came_s += at - self._heard_at
        self._heard_at = at
