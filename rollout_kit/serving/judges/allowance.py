"""What the judges of one rollout may spend on its verdict."""

from ...session import Session, current_session
from ...time_limit import running_loop
from ..agents.rollout_bounds import RolloutBounds


class Allowance:
    """Counts the questions of one verdict. A question whose reply was kept counts like any other,
    so that the same limits are reached in every run; a reply from the file counts nothing."""

    def __init__(self, limits: RolloutBounds | None) -> None:
        self._limits = limits
        self._calls = self._tokens = 0
        self._lacks_usage = False
        self._spent = (current_session() or Session()).spent
        self._usd, self._unpriced = self._spent.usd, self._spent.unpriced
        self._began_at = running_loop().time()

    def begin(self) -> str:
        """Count a question, and say why it must not be asked; empty if it may."""
        if (limits := self._limits) is None:
            return ""
        if limits.cost_usd is not None and self._spent.unpriced > self._unpriced:
            return "cost_usd: the price of a judge is unknown: set `prices` there"
        if limits.tokens is not None and self._lacks_usage:
            return "tokens: a judge does not say its usage: leave the limit out"
        reached = limits.find_reached(
            calls=self._calls,
            tokens=self._tokens,
            cost_usd=self._spent.usd - self._usd,
            seconds=running_loop().time() - self._began_at,
        )
        self._calls += 1
        return f"{reached}: reached before this judge was asked" if reached else ""

    def end(self, num_asked: int, tokens: int | None) -> None:
        """Count the reply to a question. `tokens` is None if a judge did not say."""
        self._calls += num_asked - 1
        self._tokens += tokens or 0
        self._lacks_usage = self._lacks_usage or tokens is None
