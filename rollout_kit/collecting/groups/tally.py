"""What came of the groups of a run, in numbers and for people."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import number_of
from ...store.scope import Group
from ...types import JsonObject

MAX_LISTED = 10_000
"""Unscored groups that the metrics file names."""

MAX_SHOWN = 5


@dataclass(slots=True)
class GroupTally:
    """Groups that were settled: `scored`, now or by an earlier run; `incomplete`, which wait for a
    rollout; `dropped`; and those whose verification failed."""

    scored: int = 0
    older: int = 0
    """Scored groups whose score is of another verifier than the present one."""
    incomplete: int = 0
    dropped: int = 0
    failed: dict[Group, str] = field(default_factory=dict)
    """Why; equal texts are one object."""
    zero_variance: int = 0
    reward: list[float] = field(default_factory=lambda: [0, 0.0])
    """Number and sum of the rewards."""
    numbers: dict[str, list[float]] = field(default_factory=dict)
    """The same of each figure of the groups."""

    def take(self, line: Mapping[str, Any]) -> None:
        """Count the line of a scored group."""
        self.scored += 1
        members = line["members"]
        rewards = [reward for each in members if (reward := each.get("reward")) is not None]
        self.reward[0] += len(rewards)
        self.reward[1] += sum(rewards)
        self.zero_variance += len(set(rewards)) == 1
        for name, value in (line.get("group") or {}).items():
            if isinstance(value, float | int):
                sums = self.numbers.setdefault(name, [0, 0.0])
                sums[0] += 1
                sums[1] += value

    def figures(self, planned: int) -> JsonObject:
        """For the metrics file."""
        failures = list(self.failed.items())[:MAX_LISTED]
        return {
            "planned": planned,
            "scored": self.scored,
            "failed": len(self.failed),
            "incomplete": self.incomplete,
            "dropped": self.dropped,
            "older": self.older,
            "zero_variance": self.zero_variance / self.scored if self.scored else None,
            "metrics": {name: total / number for name, (number, total) in self.numbers.items()},
            "failures": [{**group._asdict(), "message": why} for group, why in failures],
        }

    def lines(self, planned: int) -> Iterator[str]:
        """For people, at the end."""
        kinds = {
            "failed": len(self.failed),
            "incomplete": self.incomplete,
            "dropped": self.dropped,
            "with the score of an older verifier": self.older,
        }
        parts = [f"{self.scored:,} of {number_of(planned, 'group')} scored"]
        parts += [f"{number:,} {what}" for what, number in kinds.items() if number]
        number, total = self.reward
        mean = f"Group reward {total / number:.3f} · " if number else ""
        yield f"{mean}{' · '.join(parts)}"
        reasons = Counter(self.failed.values())
        for reason, number in reasons.most_common(MAX_SHOWN):
            yield f"  {number:,} × {reason}"
        if self.failed:
            named = ", ".join(group.task_id for group in list(self.failed)[:MAX_SHOWN])
            more = len(self.failed) - MAX_SHOWN
            rest = f" and {more:,} more, listed in the metrics file" if more > 0 else ""
            yield f"  not scored: {named}{rest}; the same command scores them"
