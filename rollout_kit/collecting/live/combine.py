"""One snapshot of several runs that go on together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from .snapshot import Cost, PlanCounts, RunCounts, Snapshot, Speed

T = TypeVar("T", PlanCounts, RunCounts, Speed, Cost)


def combine(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Sums over the runs. What has no sum is that of the first, or is left out."""
    first = snapshots[0]
    is_over = all(each.state == "ended" for each in snapshots)
    live = next((each.state for each in snapshots if each.state != "ended"), first.state)
    counts = _add([each.counts for each in snapshots])
    this_run = _add([each.this_run for each in snapshots])
    rewards = [
        (each.this_run.reward, each.this_run.rollouts)
        for each in snapshots
        if each.this_run.reward is not None
    ]
    whole = sum(number for _, number in rewards)
    reward = sum(mean * number for mean, number in rewards) / whole if whole else None
    stages = sum((Counter(each.stages) for each in snapshots), Counter[str]())
    costs = [each.cost for each in snapshots if each.cost]
    return replace(
        first,
        number=sum(each.number for each in snapshots) - len(snapshots) + 1,
        state="ended" if is_over else live,
        elapsed_s=max(each.elapsed_s for each in snapshots),
        counts=counts,
        this_run=replace(this_run, reward=reward),
        finished=sum(each.finished for each in snapshots),
        left_s=_most(each.left_s for each in snapshots),
        reward=None,
        speed=_add([each.speed for each in snapshots]),
        output_tokens=sum(each.output_tokens for each in snapshots),
        cost=_add(costs) if costs else None,
        holdup=None,
        stages=dict(stages),
        agents=(),
        arms=(),
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((each for each in values if each is not None), default=None)


def _add(parts: Sequence[T]) -> T:
    """The sum of each figure; None if one of them is not known."""
    first = parts[0]
    return type(first)(
        **{each.name: _sum([getattr(part, each.name) for part in parts]) for each in fields(first)}
    )


def _sum(values: Sequence[Any]) -> Any:
    if any(each is None for each in values):
        return None
    return any(values) if isinstance(values[0], bool) else sum(values)
