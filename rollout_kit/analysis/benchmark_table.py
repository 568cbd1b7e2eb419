"""Scores of benchmarks as tables: one of scores, benchmarks by models, and one of all that a reader
needs to judge them.

They are made of the metrics files alone, which runs of benchmarks write.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..reading import read_object
from ..store.files import OutputPaths
from .paper_tables import Table

ABOUT = (
    "Score with its 95% confidence interval. Cut off: responses that reached a limit on tokens. No"
    " answer: responses in which the verifier found none. Missing: planned rollouts that have no"
    " result."
)

NO_OVERALL = "Benchmarks with sections have no overall score."

HEAD = (
    *("benchmark", "model", "metric", "score", "rows × repeats", "cut off", "no answer", "missing"),
    *("sampling", "tokens", "dollars"),
)

NUMBERS = (
    *("benchmark", "model", "metric", "score", "low", "high", "rows", "rows_of_definition"),
    *("repeats", "cut_off", "no_answer", "missing", "sampling", "input_tokens", "output_tokens"),
    *("usd", "follows", "definition", "verifier", "user_model", "user_usd"),
)


class BenchmarkScore(NamedTuple):
    """The score of a run of a benchmark, as its metrics file has it. Shares are null if unknown."""

    found: Mapping[str, Any]
    cut_off: float | None
    no_answer: float | None
    missing: float | None
    input_tokens: float | None
    output_tokens: float | None
    usd: float | None

    @property
    def name(self) -> str:
        return str(self.found["name"])

    @property
    def model(self) -> str:
        return str(self.found.get("model") or "model")

    @property
    def score(self) -> str:
        """The value with its interval, or those of its sections; `–` if it is not known."""
        if "sections" in self.found:
            return ", ".join(f"{each.section} {each.score}" for each in self.split())
        if (value := self.found.get("value")) is None:
            return "–"
        between = self.found.get("interval")
        return f"{value:.3f}" + (f" [{between[0]:.3f}, {between[1]:.3f}]" if between else "")

    @property
    def model_cell(self) -> str:
        """The model, and the one that plays the user."""
        user = self.found.get("user_model")
        return f"{self.model}, user {user}" if user else self.model

    @property
    def dollars(self) -> str:
        """All dollars, and those of the user's model."""
        user = self.found.get("user_usd")
        end = "" if user is None else f", user {user:.2f}"
        return "–" if self.usd is None else f"{self.usd:.2f}{end}"

    @property
    def section(self) -> str:
        return self.name.partition(": ")[2]

    def split(self) -> "list[BenchmarkScore]":
        """Its sections as scores of their own; itself if it has none."""
        if "sections" not in self.found:
            return [self]
        own = {name: value for name, value in self.found.items() if name != "sections"}
        return [
            self._replace(
                found={
                    **own,
                    "name": f"{self.name}: {name}",
                    "metric": "avg" if self.found.get("value") is None else name,
                    "value": value,
                }
            )
            for name, value in self.found["sections"].items()
        ]

    @property
    def size(self) -> str:
        rows, whole = self.found["rows"], self.found["rows_of_definition"]
        of = "" if rows == whole else f" of {whole:,}"
        return f"{rows:,}{of} × {self.found['repeats']:g}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Score, rows and shares, for people."""
        metric = f"{self.found['metric']} {self.score}" if self.found.get("metric") else "–"
        metric = self.score if "sections" in self.found else metric
        return metric, self.size, *map(_percent, (self.cut_off, self.no_answer, self.missing))


def find_score(metrics: Mapping[str, Any]) -> BenchmarkScore:
    """What a metrics file says of the score of its benchmark."""
    counts, rates, usage = metrics["counts"], metrics["rates"], metrics.get("usage", {})
    planned = counts.get("planned")
    rows = counts.get("tasks", 0)
    empty = {"rows": rows, "rows_of_definition": rows, "repeats": planned / rows if rows else 0}
    return BenchmarkScore(
        {**empty, **metrics.get("benchmark", {})},
        rates.get("cut_off"),
        rates.get("no_answer"),
        1 - counts["rollouts"] / planned if planned else None,
        usage.get("input_tokens"),
        usage.get("output_tokens"),
        (metrics.get("cost") or {}).get("usd"),
    )


def read_score(path: Path) -> BenchmarkScore | None:
    """The score beside a file of rollouts; None if it is of no benchmark."""
    return score_in(read_object(OutputPaths(path).metrics))


def score_in(metrics: Mapping[str, Any]) -> BenchmarkScore | None:
    """The score in a metrics file; None if it is of no benchmark."""
    return find_score(metrics) if isinstance(metrics.get("benchmark"), dict) else None


def tabulate_scores(scored: Sequence[BenchmarkScore]) -> Table:
    """One row a benchmark or section, one column a model."""
    about = ABOUT.partition(".")[0] + "."
    if any("sections" in each.found and each.found.get("value") is None for each in scored):
        about += f" {NO_OVERALL}"
    scored = [part for each in scored for part in each.split()]
    models = list(dict.fromkeys(each.model for each in scored))
    names = list(dict.fromkeys(each.name for each in scored))
    by_place = {(each.name, each.model): each for each in scored}
    metrics = {each.name: each.found["metric"] for each in scored}
    rows, numbers = [], []
    for name in names:
        cells = [by_place.get((name, model)) for model in models]
        rows.append([name, metrics[name], *(each.score if each else "–" for each in cells)])
        values = [each.found.get("value") if each else None for each in cells]
        numbers.append([name, metrics[name], *values])
    head = ["benchmark", "metric", *models]
    return Table(head, rows, about, (head, numbers))


def tabulate_runs(scored: Sequence[BenchmarkScore]) -> Table:
    """One row for each benchmark and model, with what its score depends on."""
    rows, numbers = [], []
    for each in scored:
        found, (_, *cells) = each.found, each.cells
        sampling = describe_sampling(found.get("sampling", {}))
        tokens = None
        if each.input_tokens is not None and each.output_tokens is not None:
            tokens = each.input_tokens + each.output_tokens
        rows.append(
            [
                *(each.name, each.model_cell, found["metric"], each.score, *cells, sampling),
                "–" if tokens is None else f"{tokens:,.0f}",
                each.dollars,
            ]
        )
        low, high = found.get("interval") or (None, None)
        numbers.append(
            [
                *(each.name, each.model, found["metric"], found.get("value"), low, high),
                *(found["rows"], found["rows_of_definition"], found["repeats"]),
                *(each.cut_off, each.no_answer, each.missing, sampling),
                *(each.input_tokens, each.output_tokens, each.usd),
                *(found.get(name) for name in ("follows", "definition", "verifier")),
                *(found.get(name) for name in ("user_model", "user_usd")),
            ]
        )
    follows = dict.fromkeys(f"{each.found['name']}: {each.found['follows']}" for each in scored)
    about = f"{ABOUT} Definitions follow: {'; '.join(follows)}."
    return Table(HEAD, rows, about, (NUMBERS, numbers))


def describe_sampling(params: Mapping[str, Any]) -> str:
    """Sampling values in one cell."""
    shown = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in params.items()
        if name != "input"
    }
    return ", ".join(f"{name} {value}" for name, value in shown.items()) or "the model's own"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
