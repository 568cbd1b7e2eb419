"""Targets for the figures: each with its bound, its value, and whether it holds."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .figures import Figure
from .grid import Compared

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
}

OF_FIGURES: list[tuple[str, str, str, float, str]] = [
    ("million_first_s", "1,000,000-row input: first request", "<", 5.0, "s"),
    ("million_peak_mb", "1,000,000-row input: peak memory, all rows read", "<", 350.0, "MB"),
    ("input_bytes_per_task", "1,000,000-row input: memory a task read", "<=", 200.0, "bytes"),
    ("bytes_per_task", "memory kept a finished task", "<=", 200.0, "bytes"),
    ("million_end_mb", "1,000,000 finished tasks: peak memory", "<", 350.0, "MB"),
    ("resume_first_s", "continuing behind 1,000,000: first new request", "<", 3.0, "s"),
    ("resume_unindexed_s", "… the first time, without an index", "<", 40.0, "s"),
    ("resume_peak_mb", "continuing behind 1,000,000: peak until then", "<", 450.0, "MB"),
    ("journal_short_index_us", "index: CPU a rollout", "<", 9.0, "µs"),
    ("final_s_per_1000", "final metrics and exit, per 1,000 rollouts", "<", 0.1, "s"),
    ("groups_16_ratio", "scored groups, 16 in flight: CPU a rollout", "<", 1.1, "× without"),
    ("groups_128_ratio", "scored groups, 128 in flight: CPU a rollout", "<", 1.1, "× without"),
    ("groups_1024_ratio", "scored groups, 1,024 in flight: CPU a rollout", "<", 1.1, "× without"),
    ("groups_kept", "memory kept a scored group", "<=", 200.0, "bytes"),
]
"""Figure, description, comparison, bound, unit."""

MIN_IN_FLIGHT = 0.97
"""Share of the limit, on average, from the end of the ramp-up to the last request."""


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    figure: float | None
    comparison: str
    bound: float
    unit: str = ""

    @property
    def held(self) -> bool | None:
        """None if it was not measured."""
        if self.figure is None:
            return None
        return COMPARE[self.comparison](self.figure, self.bound)

    @property
    def verdict(self) -> str:
        return {True: "held", False: "NOT HELD", None: "not measured"}[self.held]

    @property
    def asked(self) -> str:
        return f"{self.comparison} {self.bound:,g} {self.unit}".strip()

    @property
    def shown(self) -> str:
        return "–" if self.figure is None else f"{self.figure:,.4g} {self.unit}".strip()


def judge(compared: Sequence[Compared], figures: Sequence[Figure]) -> list[Line]:
    """Return every target in a fixed order, measured or not."""
    cases = {each.case.name: each for each in compared}
    values = {each.name: each.value for each in figures}
    lines = [*_of_cases(cases)]
    lines += [
        Line(what, values.get(name), comparison, bound, unit)
        for name, what, comparison, bound, unit in OF_FIGURES
    ]
    return lines


def _of_cases(cases: Mapping[str, Compared]) -> Iterator[Line]:
    for parallel in (16, 128, 1_024):
        found = cases.get(f"local-short-{parallel}")
        what = f"one process, {parallel:,} in flight"
        yield Line(f"{what}: CPU a rollout", found and found.cpu_ratio, "<=", 1.5, "× bare")
        yield Line(f"{what}: rate", found and found.rate_ratio, ">=", 0.65, "of bare")
    for parallel in (16, 128, 1_024):
        found = cases.get(f"local-long-{parallel}")
        what = f"one process, {parallel:,} in flight, 200 KB responses: CPU a rollout"
        yield Line(what, found and found.cpu_ratio, "<=", 2.0, "× bare")
    for turns, most in ((40, 1.5), (160, 1.3), (320, 1.0)):
        found = cases.get(f"local-turns-{turns}")
        what = f"one process, {turns} turns: CPU a rollout"
        yield Line(what, found and found.cpu_ratio, "<=", most, "× bare, orjson")
    for turns in (40, 160, 320):
        found = cases.get(f"process-turns-{turns}")
        what = f"three server processes, {turns} turns: CPU of all"
        yield Line(what, found and found.whole_cpu_ratio, "<=", 1.5, "× bare, hops")
    found = cases.get("process-short-64")
    what = "three server processes, 64 in flight: rate"
    yield Line(what, found and found.rate_ratio, ">=", 0.06, "of bare")
    for name, parallel, latency in (
        ("local-short-1s-1024", 1_024, "1 s"),
        ("local-short-4s-4096", 4_096, "4 s"),
    ):
        found = cases.get(name)
        what = f"{latency} latency, {parallel:,} in flight"
        yield Line(f"{what}: rate", found and found.rate_ratio, ">=", 0.95, "of bare")
        mean = found and found.ours.mean_in_flight / parallel
        yield Line(f"{what}: mean in flight", mean, ">=", MIN_IN_FLIGHT, "of the limit")
        most = found and float(found.ours.max_in_flight)
        yield Line(f"{what}: most in flight", most, "<=", float(parallel))
