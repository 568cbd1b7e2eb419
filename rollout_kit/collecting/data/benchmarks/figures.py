"""Scores that a benchmark has besides the mean reward: `figures` of its definition.

Means come from the metrics of a run. What the rollouts have to be read for is computed here, from
the file of rollouts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ....config.benchmarks.definition import Definition, Figure
from ....store.rollouts import RolloutFile
from ....types import JsonObject
from .win_rate import Battle, compute_win_rate

BIN = 100
"""Rollouts of a bin of the calibration error."""


class Scored(NamedTuple):
    """A score with its 95 % interval, which is None if it is not known."""

    value: float | None
    interval: Sequence[float] | None = None


def compute_figures(
    definition: Definition, metrics: Mapping[str, Any], lines: Sequence[JsonObject]
) -> dict[str, Scored]:
    """The figures of a definition, from the metrics of a run and the fields of its rollouts."""
    found: dict[str, Scored] = {}
    for name, figure in definition.figures.items():
        if figure.mean_by is not None:
            groups = group_rewards(lines, figure.mean_by)
            found |= {f"{name} {value}": Scored(fmean(own)) for value, own in groups.items()}
            continue
        scored = _compute(figure, metrics, lines)
        found[name] = _clip(scored) if figure.clip else scored
    return found


def read_fields(definition: Definition, output: Path | None) -> list[JsonObject]:
    """What the figures need of each rollout in a file, without its texts; nothing without one."""
    figures = [each for each in definition.figures.values() if not (each.mean or each.ratio)]
    if not figures or output is None or not output.exists():
        return []
    fields = {"reward", "battles"}
    for each in figures:
        fields |= {*(each.win_rate or ()), each.mean_by or "", each.calibration_error or ""}
    return [
        {name: rollout.line[name] for name in fields & rollout.line.keys()}
        for rollout in RolloutFile(output).rollouts()
        if rollout.reward is not None
    ]


def _compute(figure: Figure, metrics: Mapping[str, Any], lines: Sequence[JsonObject]) -> Scored:
    means, intervals = metrics["metrics"], metrics["intervals"]
    if figure.mean is not None:
        return Scored(means.get(figure.mean), intervals.get(figure.mean))
    if figure.ratio:
        of, over = (
            [each if isinstance(each, float | int) else means.get(each) for each in part]
            for part in figure.ratio
        )
        is_known = None not in (*of, *over)
        return Scored((sum(of) / sum(over) if sum(over) else 0.0) if is_known else None)
    if figure.win_rate is not None:
        battles = [
            Battle(battle["score"], battle["weight"], [line[name] for name in figure.win_rate])
            for line in lines
            for battle in line.get("battles", ())
        ]
        return Scored(*compute_win_rate(battles))
    field = figure.calibration_error
    pairs = [(line[field], line["reward"]) for line in lines if field in line]
    return Scored(compute_calibration_error(pairs))


def _clip(scored: Scored) -> Scored:
    def clip(value: float) -> float:
        return min(max(value, 0.0), 1.0)

    interval = scored.interval and [clip(each) for each in scored.interval]
    return Scored(None if scored.value is None else clip(scored.value), interval)


def group_rewards(lines: Iterable[JsonObject], field: str) -> dict[str, list[float]]:
    """Value of a field → the rewards of its rollouts."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line.get(field) is not None:
            found[str(line[field])].append(line["reward"])
    return dict(sorted(found.items()))


def compute_calibration_error(pairs: Iterable[tuple[float, float]]) -> float | None:
    """The root of the mean square of what confidence and reward differ by, in bins of about equal
    confidence, as Humanity's Last Exam has it; the last bin takes the rest."""
    ordered = sorted(pairs, key=lambda pair: pair[0])
    if not ordered:
        return None
    size = min(BIN, len(ordered))
    starts = [number * size for number in range(len(ordered) // size)]
    squares = 0.0
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        confidences, rewards = zip(*ordered[start:end], strict=True)
        squares += (end - start) / len(ordered) * (fmean(confidences) - fmean(rewards)) ** 2
    return sqrt(squares)
