"""Alarms about the figures of a training: bounds, jumps, numbers that are none, and a reward that
rises while an evaluation falls.

An alarm is said once each time that it begins.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

REWARD = "reward/mean"

EVALUATION, OF_REWARD, OF_ERROR = "eval/", "/reward", "/reward_error"
"""Figures of held-out tasks: `eval/<name>/reward`, and its standard error, if it is known."""

SMOOTHED = 10
"""Batches over which the training reward is averaged."""

DRIFT = 0.03
"""The least rise of the training reward, and fall of an evaluation, that counts as drift."""

ERRORS = 3
"""An evaluation must also fall by so many standard errors."""

DRIFT_LOOKS = 2
"""Evaluations in a row that must show it."""

KNOWN = 20
"""Batches before a figure is compared with its own median."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """An alarm: `figure` was above (or below) `bound` in `windows` batches in a row."""

    figure: str
    bound: float
    advice: str
    is_floor: bool = False
    windows: int = 3

    def is_passed(self, value: float) -> bool:
        return value < self.bound if self.is_floor else value > self.bound


@dataclass(frozen=True, slots=True)
class Jump:
    """An alarm: `figure` was above `factor` times its median so far in `windows` batches in a
    row."""

    figure: str
    factor: float
    advice: str
    windows: int = 3


THRESHOLDS = (
    Threshold("group/zero_variance_frac", 0.8, "reward collapse: check the verifier, vary tasks"),
    Threshold("staleness/max", 4, "stale rollouts: sync weights more often, or lower staleness"),
    Threshold("weights/sync_lag", 2, "the servers lag behind: see GET /weight_version"),
    Threshold("policy/entropy", 0.01, "entropy collapse: lower the rate", is_floor=True),
    Threshold("kl/mean", 0.5, "the policy leaves the reference: lower the rate"),
    Threshold("length/truncated_frac", 0.5, "answers are cut off: raise max_output_tokens"),
)

JUMPS = (
    Jump("policy/grad_norm", 10, "the gradient explodes: lower the rate, clip it"),
    Jump("length/mean", 3, "answers grow: look whether the verifier rewards length"),
)


class BatchAlarms:
    """Says which alarms begin with a batch."""

    def __init__(
        self, thresholds: Sequence[Threshold] = THRESHOLDS, jumps: Sequence[Jump] = JUMPS
    ) -> None:
        self.thresholds, self.jumps = thresholds, jumps
        self._passed: Counter[str] = Counter()
        self._seen: dict[str, list[float]] = {each.figure: [] for each in jumps}
        self._drifts = dict[str, DriftAlarm]()
        self._rewards = deque[float](maxlen=SMOOTHED)

    def check(self, figures: Mapping[str, float]) -> list[str]:
        """The alarms that begin with this batch."""
        return [
            *self._check_numbers(figures),
            *self._check_thresholds(figures),
            *self._check_jumps(figures),
            *self._check_drift(figures),
        ]

    def _check_numbers(self, figures: Mapping[str, float]) -> Iterator[str]:
        for name, value in figures.items():
            if self._begins(f"{name} is a number", not math.isfinite(value), 1):
                yield f"{name} is {value:g}: stop, and continue from the last sound checkpoint"

    def _check_thresholds(self, figures: Mapping[str, float]) -> Iterator[str]:
        for each in self.thresholds:
            value = figures.get(each.figure)
            if value is None or not math.isfinite(value):
                continue
            if self._begins(each.figure, each.is_passed(value), each.windows):
                side = "below" if each.is_floor else "above"
                yield (
                    f"{each.figure} is {value:g}, {side} {each.bound:g} in {each.windows} batches:"
                    f" {each.advice}"
                )

    def _check_jumps(self, figures: Mapping[str, float]) -> Iterator[str]:
        for each in self.jumps:
            value, seen = figures.get(each.figure), self._seen[each.figure]
            if value is None or not math.isfinite(value):
                continue
            usual = statistics.median(seen) if len(seen) >= KNOWN else math.inf
            if self._begins(f"{each.figure} jumps", value > each.factor * usual, each.windows):
                yield (
                    f"{each.figure} is {value:g}, above {each.factor:g} times its median of"
                    f" {usual:g} in {each.windows} batches: {each.advice}"
                )
            if value <= each.factor * usual:
                seen.append(value)

    def _check_drift(self, figures: Mapping[str, float]) -> Iterator[str]:
        if (reward := figures.get(REWARD)) is not None and math.isfinite(reward):
            self._rewards.append(reward)
        for name, value in figures.items():
            if name.startswith(EVALUATION) and name.endswith(OF_REWARD) and self._rewards:
                error = figures.get(name.removesuffix(OF_REWARD) + OF_ERROR, 0.0)
                drift = self._drifts.setdefault(name, DriftAlarm())
                if said := drift.check(statistics.fmean(self._rewards), value, error):
                    yield f"{name} {said}"

    def _begins(self, name: str, is_passed: bool, windows: int) -> bool:
        self._passed[name] = self._passed[name] + 1 if is_passed else 0
        return self._passed[name] == windows


class DriftAlarm:
    """Compares each evaluation with the best one so far."""

    def __init__(self) -> None:
        self._best = self._then = -math.inf
        self._looks = 0

    def check(self, training: float, evaluation: float, error: float = 0.0) -> str:
        """What is wrong, once it begins. `training` is the smoothed training reward, `error` the
        standard error of the evaluation."""
        if not math.isfinite(evaluation):
            return ""
        if evaluation >= self._best:
            self._best, self._then = evaluation, training
        has_fallen = self._best - evaluation >= max(DRIFT, ERRORS * error)
        is_drift = has_fallen and training - self._then >= DRIFT
        self._looks = self._looks + 1 if is_drift else 0
        if self._looks != DRIFT_LOOKS:
            return ""
        return (
            f"fell from {self._best:.3f} to {evaluation:.3f}, while the training reward rose from"
            f" {self._then:.3f} to {training:.3f}: the policy may game the verifier. Look at"
            " rollouts with a high reward"
        )
