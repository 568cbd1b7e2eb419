"""Whose turn it is, so that each source has its share of the groups that a trainer uses."""

from collections import Counter
from collections.abc import Collection, Mapping


class Shares:
    """A group counts from its beginning until it is lost: dropped as stale, left out for a failed
    member, or filtered. So the shares hold over the groups that are used, however many of a source
    are lost, and a source whose rollouts are slow loses nothing."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = dict(weights)
        self.begun: Counter[str] = Counter()
        self.used: Counter[str] = Counter()
        self._source_of: dict[str, str] = {}
        """Key of a group in progress → its source."""

    def choose(self, candidates: Collection[str]) -> str:
        """The source that is furthest behind its share; the first one of several."""
        names = [name for name in self.weights if name in candidates]
        return min(names, key=lambda name: (self.begun[name] + 1) / self.weights[name])

    def begin(self, key: str, source: str) -> None:
        self._source_of[key] = source
        self.begun[source] += 1

    def restore(self, key: str, source: str) -> None:
        """Count a group that an earlier run began, and whose end is not known yet."""
        if key not in self._source_of:
            self.begin(key, source)

    def end(self, key: str, *, is_used: bool) -> None:
        """Count a group that was used, or lost. One that is not known counts nothing."""
        if (source := self._source_of.pop(key, None)) is None:
            return
        if is_used:
            self.used[source] += 1
        else:
            self.begun[source] -= 1

    def let_off(self, source: str) -> None:
        """Count what a source is behind its share as begun: it does not catch up."""
        others = [name for name in self.weights if name != source]
        if others:
            due = min(self.begun[name] / self.weights[name] for name in others)
            self.begun[source] = max(self.begun[source], int(due * self.weights[source]))

    def describe(self) -> str:
        """The shares so far, in a line."""
        total, weight = self.used.total(), sum(self.weights.values())
        parts = (
            f"{name} {self.used[name]:,} of {total:,} groups used,"
            f" {self.used[name] / total:.1%} (asked: {each / weight:.1%})"
            for name, each in self.weights.items()
        )
        return "; ".join(parts) if total else "no group was used"
