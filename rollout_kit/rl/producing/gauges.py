"""What the trainer and the buffer tell about themselves, for the page and the trackers of a run."""

import math
from collections.abc import Mapping
from typing import Any

from ...analysis.metrics.tally import Tally
from ...types import Say
from ..alarms import BatchAlarms

SIZES = ("waiting", "leased", "reserved", "bytes")

MAX_ALARMS = 20
"""The last ones are shown."""


class TrainerGauges:
    """Keeps the figures of a tally, and says an alarm when a threshold is passed."""

    def __init__(self, tally: Tally, say: Say) -> None:
        self._tally, self._say = tally, say
        self._alarms = BatchAlarms()
        self._version: int | None = None
        """The trainer's version, when the alarms were checked last."""
        self._evaluated: dict[str, float] = {}
        """Figures of the last evaluation."""

    def take(self, stats: Mapping[str, Any], more: Mapping[str, float] | None = None) -> None:
        """Follow a buffer's statistics, and `more` figures. The trainer's own figures count before
        those of the buffer."""
        told = (stats.get("figures") or {}).items()
        gauges = {**measure_buffer(stats), **(more or {})} | {
            n: math.nan if v is None else v for n, v in told
        }
        self._tally.gauges = {**self._evaluated, **gauges}
        if (version := stats["version"]) is None or version == self._version:
            return
        self._version = version
        self._check(version, gauges)

    def take_evaluation(self, version: int, figures: Mapping[str, float]) -> None:
        """Follow the figures of an evaluation."""
        self._evaluated |= figures
        self._tally.gauges = {**self._tally.gauges, **figures}
        self._check(version, figures)

    def _check(self, version: int, figures: Mapping[str, float]) -> None:
        for alarm in self._alarms.check(figures):
            self._say(f"alarm: step {version}: {alarm}", event="alarm", version=version)
            self._tally.alarms = [*self._tally.alarms, f"step {version}: {alarm}"][-MAX_ALARMS:]


def measure_buffer(stats: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a buffer."""
    found = {f"buffer/{name}": float(stats[name]) for name in SIZES}
    found |= {f"buffer/dropped/{why}": float(n) for why, n in stats["dropped"].items()}
    if stats["version"] is not None:
        found["policy/version"] = float(stats["version"])
    lags = {int(lag): number for lag, number in stats["staleness"].items()}
    if total := sum(lags.values()):
        found["staleness/mean"] = sum(lag * number for lag, number in lags.items()) / total
        found["staleness/max"] = float(max(lags))
    return found
