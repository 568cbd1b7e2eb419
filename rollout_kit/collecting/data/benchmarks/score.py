"""The published metric of a benchmark, from the metrics of a run."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ....config.benchmarks.asked import THEIRS
from ....config.benchmarks.definition import Definition, read_definition
from ....config.keys import Command
from ....errors import number_of
from ....types import JsonObject

WHERE = {"pass": "pass_at_k", "maj": "maj_at_k"}
"""The first part of a metric's name → where the metrics have its values, by k."""


def find_definition(command: Command) -> Definition | None:
    """The definition that a run is of; None if it is of none of ours."""
    name = str(getattr(command, "benchmark", None) or THEIRS)
    is_own = getattr(command, "input_jsonl_fpath", None) and not name.startswith(THEIRS)
    return _read_once(name, Path.cwd()) if is_own else None


@cache
def _read_once(name: str, cwd: Path) -> Definition:
    """The definition as it was when a run began: metrics are written many times."""
    return read_definition(name, cwd)


def score(definition: Definition, metrics: Mapping[str, Any]) -> JsonObject:
    """Its metric with a 95 % interval, and over how many of its rows. `value` is None where too few
    repeats were made, and `definition` is the checksum of its file."""
    kind, _, k = definition.metric.partition("@")
    counts = metrics["counts"]
    value, interval = metrics["metrics"].get("reward"), metrics["intervals"].get("reward")
    if kind in WHERE and k != "1":
        value, interval = metrics.get(WHERE[kind], {}).get(k), None
    rows = counts["tasks"]
    repeats = counts["planned"] / rows if rows else 0
    if kind == "avg" and repeats != int(k):
        kind, k = "avg", f"{repeats:g}"
    return {
        "name": definition.name,
        "metric": f"{kind}@{k}",
        "value": value,
        "interval": interval,
        "rows": rows,
        "rows_of_definition": definition.rows,
        "repeats": repeats,
        "follows": definition.follows,
        "definition": definition.digest,
    }


def describe_score(found: Mapping[str, Any]) -> str:
    """The metric in one line."""
    whole, rows = found["rows_of_definition"], found["rows"]
    over = number_of(rows, "row") if rows == whole else f"{rows:,} of its {whole:,} rows"
    if found["value"] is None:
        return f"Benchmark {found['name']}: {found['metric']} needs more repeats; {over}"
    between = "" if not found["interval"] else " [{:.3f}, {:.3f}]".format(*found["interval"])
    return f"Benchmark {found['name']}: {found['metric']} {found['value']:.3f}{between} over {over}"
