"""The published metric of a benchmark, from the metrics of a run."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from ....config.benchmarks.asked import THEIRS
from ....config.benchmarks.definition import Definition, read_definition
from ....config.keys import Command
from ....errors import number_of
from ....types import JsonObject
from .figure_values import compute_figures, read_fields

WHERE = {"pass@": "pass_at_k", "maj@": "maj_at_k", "pass^": "pass_hat_k"}
"""The start of a metric's name → where the metrics have its values, by k."""

SECTIONS = "sections"
"""The metric of a benchmark with several scores, and none for all of it."""


def find_definition(command: Command) -> Definition | None:
    """The benchmark that a run is of; None if it is of none of ours."""
    name = str(getattr(command, "benchmark", None) or THEIRS)
    is_own = getattr(command, "input_jsonl_fpath", None) and not name.startswith(THEIRS)
    found = _read_once(name, Path.cwd()) if is_own else None
    return found if found is not None and found.kind == "benchmark" else None


@cache
def _read_once(name: str, cwd: Path) -> Definition:
    """The definition as it was when a run began: metrics are written many times."""
    return read_definition(name, cwd)


def score(
    definition: Definition, metrics: Mapping[str, Any], output: Path | None = None
) -> JsonObject:
    """Its metric with a 95 % interval, and over how many of its rows. `value` is None where too few
    repeats were made, and for sections. `definition` is the checksum of its file. Some figures are
    computed from the rollouts in `output`."""
    figures = compute_figures(definition, metrics, read_fields(definition, output))
    named = {name: each.value for name, each in figures.items()}
    if definition.metric in figures:
        value, interval = figures[definition.metric]
        own = {"value": value, "interval": interval and [*interval], "sections": named}
        return {**_describe(definition, metrics), **own}
    if definition.metric == SECTIONS:
        return {**_describe(definition, metrics), "sections": find_sections(definition, metrics)}
    kind, sign, k = re.split("([@^])", definition.metric)
    counts = metrics["counts"]
    value, interval = metrics["metrics"].get("reward"), metrics["intervals"].get("reward")
    if kind + sign in WHERE and k != "1":
        value, interval = metrics.get(WHERE[kind + sign], {}).get(k), None
    repeats = counts["planned"] / counts["tasks"] if counts["tasks"] else 0
    if kind == "avg" and repeats != int(k):
        kind, k = "avg", f"{repeats:g}"
    parts: JsonObject = {}
    if figures:
        parts = {"sections": {f"{kind}{sign}{k}": value, **named}}
    if sign == "^":
        known = {"1": metrics["metrics"].get("reward"), **metrics.get("pass_hat_k", {})}
        interval = metrics.get("pass_hat_k_intervals", {}).get(k)
        parts = {"sections": {f"pass^{n}": known.get(str(n)) for n in range(1, int(k) + 1)}}
    return {
        **_describe(definition, metrics),
        "metric": f"{kind}{sign}{k}",
        "value": value,
        "interval": interval,
        **parts,
    }


def _describe(definition: Definition, metrics: Mapping[str, Any]) -> JsonObject:
    counts = metrics["counts"]
    rows = counts["tasks"]
    mean = metrics["metrics"].get("user_cost_usd")
    user = {} if mean is None else {"user_usd": mean * counts["rollouts"]}
    return {
        **user,
        "name": definition.name,
        "metric": definition.metric,
        "value": None,
        "interval": None,
        "rows": rows,
        "rows_of_definition": definition.rows,
        "repeats": counts["planned"] / rows if rows else 0,
        "follows": definition.follows,
        "definition": definition.digest,
    }


def find_sections(definition: Definition, metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """The score of each section: the mean of its parts; None if a part has no rollout."""
    found: dict[str, float | None] = {}
    for name, parts in definition.sections.items():
        values = [
            found[part] if part in found else metrics["metrics"].get(f"accuracy/{part}")
            for part in parts
        ]
        known = [value for value in values if value is not None]
        found[name] = fmean(known) if len(known) == len(parts) else None
    return found


def describe_score(found: Mapping[str, Any]) -> str:
    """The metric in one line."""
    whole, rows = found["rows_of_definition"], found["rows"]
    over = number_of(rows, "row") if rows == whole else f"{rows:,} of its {whole:,} rows"
    if "sections" in found:
        shown = (
            f"{name} {'–' if value is None else f'{value:.3f}'}"
            for name, value in found["sections"].items()
        )
        end = "; no overall score" if found["metric"] == SECTIONS else ""
        return f"Benchmark {found['name']}: {', '.join(shown)} over {over}{end}"
    if found["value"] is None:
        return f"Benchmark {found['name']}: {found['metric']} needs more repeats; {over}"
    between = "" if not found["interval"] else " [{:.3f}, {:.3f}]".format(*found["interval"])
    return f"Benchmark {found['name']}: {found['metric']} {found['value']:.3f}{between} over {over}"
