"""The report beside an output: how many rows, what was left out and why, lengths, rewards."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import number_of
from ...reading import read_object
from ...store.files import OutputPaths, check_replaceable
from ...types import JsonObject
from .dataset_folder import read_card

QUANTILES = (0.1, 0.5, 0.9)


def report_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}_report.json")


def find_exports(output: Path) -> set[str]:
    """The names of the files that the report beside an output calls exports."""
    found = read_object(report_path(output))
    lists = (found.get(name) for name in ("files", "earlier"))
    named = (each for each in lists if isinstance(each, dict | list))
    return {Path(str(path)).name for paths in named for path in paths}


def check_exports(output: Path, files: Iterable[Path]) -> None:
    """ConfigError if one of the files exists and is no earlier export: it would be lost."""
    known = find_exports(output)
    card = read_object(report_path(output)).get("card")

    def is_own(path: Path) -> bool:
        if path.is_dir():
            return not any(path.iterdir()) or (card is not None and card == read_card(path))
        is_export = path.name in known and not OutputPaths(path).manifest.exists()
        return is_export or not path.stat().st_size

    for path in files:
        check_replaceable(path, "earlier export", is_own)


@dataclass(slots=True)
class Figures:
    """All values of one figure."""

    values: list[float] = field(default_factory=list)

    def to_json(self) -> JsonObject | None:
        if not self.values:
            return None
        ranked = sorted(self.values)
        at = {f"p{q:.0%}"[:-1]: ranked[round(q * (len(ranked) - 1))] for q in QUANTILES}
        mean = math.fsum(ranked) / len(ranked)
        found = {"mean": mean, "min": ranked[0], **at, "max": ranked[-1]}
        return {name: round(value, 6) for name, value in found.items()}


@dataclass(slots=True)
class ExportReport:
    """What is counted while rows are written."""

    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → rollouts; of pairs, reason → pairs."""
    tasks: set[str] = field(default_factory=set)
    rules: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, Figures] = field(default_factory=dict)
    labels: Counter[bool] = field(default_factory=Counter)
    """Whether rows are right → how many, in formats that say it."""
    without_tools: int = 0
    """Rows of rollouts that had tools, in formats that cannot say which."""

    def add(self, task_id: str, **figures: float | None) -> None:
        """Count a row."""
        self.tasks.add(task_id)
        for name, value in figures.items():
            if value is not None:
                self.numbers.setdefault(name, Figures()).values.append(value)

    def to_json(self) -> JsonObject:
        found: JsonObject = {"tasks": len(self.tasks)}
        if self.rules:
            found["rules"] = dict(self.rules.most_common())
        found |= {name: each.to_json() for name, each in self.numbers.items()}
        if self.without_tools:
            found["without_tools"] = self.without_tools
        found["left_out"] = {name: n for name, n in self.left_out.most_common() if n}
        return found


def format_report(found: JsonObject) -> str:
    """The report for people."""
    return "\n".join(_lines(found))


def _lines(found: JsonObject) -> Iterator[str]:
    what = "pair" if "rules" in found else "row"
    for endpoint, number in found.get("sent", {}).items():
        yield f"{endpoint}: {number_of(number, 'trace')} sent"
    for path, number in found.get("files", {}).items():
        yield f"{path}: {number_of(number, what)} in the format {found['format']}"
    for path in found.get("beside", ()):
        yield f"{path}: for the trainer"
    read, written = number_of(found["read"], "rollout"), number_of(found["tasks"], "task")
    yield f"  {read} read, {written} written"
    for rule, number in found.get("rules", {}).items():
        yield f"  {rule}: {number_of(number, 'pair')}"
    for name in ("words", "reward", "margin", "longer_by_words"):
        if numbers := found.get(name):
            spread = f"{numbers['min']:g} to {numbers['max']:g}, median {numbers['p50']:g}"
            yield f"  {name.replace('_', ' ')}: mean {numbers['mean']:.4g}, {spread}"
    if labels := found.get("labels"):
        bound = f"reward ≥ {labels['pass_threshold']:g}"
        yield f"  labels: {labels['right']:,} right ({bound}), {labels['wrong']:,} wrong"
        if not (labels["right"] and labels["wrong"]):
            yield "  all labels are the same, so nothing is learned: choose another +pass_threshold"
    if number := found.get("without_tools"):
        rows = number_of(number, what)
        yield f"  tools: left out of {rows}, as the format {found['format']} has no place for them"
    for reason, number in found["left_out"].items():
        yield f"  left out: {number:,} ({reason})"


def explain_nothing(num_read: int, left_out: Sequence[tuple[str, int]], what: str) -> str:
    """Why nothing was written, in one line."""
    reasons = ", ".join(f"{number:,} ({reason})" for reason, number in left_out if number)
    read = f"of {number_of(num_read, 'rollout')}, no {what} is left"
    why = read if num_read else "the input has no rollouts"
    return f"nothing was written: {why}" + (f"; left out: {reasons}" if reasons else "")
