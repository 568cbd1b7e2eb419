"""Writes samples as an `.eval` archive of inspect: a log of one agent and one model."""

import math
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import orjson

from ..._version import __version__
from ...errors import ConfigError, OutputError
from ...types import JsonObject
from .row_files import RowFile

VERSION = 2
"""Of the format that this module writes."""

LONGEST_TEXT = 1000
"""Characters of a text in a summary."""

OF_SUMMARY = (
    *("id", "epoch", "target", "scores", "model_usage", "started_at", "completed_at"),
    "total_time",
)


class EvalLog(RowFile):
    """Each row has the agent, the model and the `sample`. Summaries stay in memory until the end:
    about 1 KB for each sample."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, is_parquet=False)
        self._archive = zipfile.ZipFile(self._stream, "w", zipfile.ZIP_DEFLATED)
        self._run: tuple[str, str] | None = None
        self._summaries: list[JsonObject] = []
        self._scores: dict[str, dict[str, list[float]]] = {}
        """Score → task → its values."""

    def write(self, row: JsonObject) -> None:
        run, sample = (row["agent"], row["model"]), row["sample"]
        self._run = self._run or run
        if run != self._run:
            named = (f"{agent} with the model {model}" for agent, model in (self._run, run))
            raise ConfigError(
                f"a log of inspect is of one agent and one model; these are of "
                f"{' and '.join(named)}: choose some with +where="
            )
        self._put(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", sample)
        for name, score in sample["scores"].items():
            of_task = self._scores.setdefault(name, {}).setdefault(sample["id"], [])
            of_task.append(score["value"])
        self._summaries.append(summarise(sample))
        self.num_rows += 1

    def complete(self) -> None:
        try:
            if self._run is not None:
                self._put("summaries.json", self._summaries)
                self._put("_journal/start.json", self._describe())
                self._put("header.json", {**self._describe(), **self._conclude()})
            self._archive.close()
            self._stream.close()
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from None

    def discard(self) -> None:
        self._archive.fp = None  # else the archive writes its directory when it is collected
        super().discard()

    def _put(self, name: str, value: Any) -> None:
        try:
            self._archive.writestr(name, orjson.dumps(value))
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from None

    def _describe(self) -> JsonObject:
        agent, model = self._run or ("", "")
        started = min(
            (each["started_at"] for each in self._summaries if "started_at" in each), default=None
        )
        ids = list(dict.fromkeys(each["id"] for each in self._summaries))
        run = {
            "eval_id": self.path.stem,
            "run_id": self.path.stem,
            "created": started or datetime.now(UTC).isoformat(),
            "task": self.path.stem,
            "task_id": self.path.stem,
            "solver": agent,
            "dataset": {"samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": model,
            "config": {"epochs": max(each["epoch"] for each in self._summaries)},
            "packages": {"rollout_kit": __version__},
            "scorers": [{"name": name, "metrics": []} for name in self._scores],
        }
        return {"version": VERSION, "eval": run, "plan": {"name": "plan", "steps": []}}

    def _conclude(self) -> JsonObject:
        number = len({each["id"] for each in self._summaries})
        done = [each for each in self._summaries if "error" not in each]
        names = sorted(self._scores, key=lambda name: name != "reward")
        scores = [_score(name, self._scores[name], number) for name in names]
        stats = {"model_usage": _total_usage(self._summaries)}
        results = {
            "total_samples": len(self._summaries),
            "completed_samples": len(done),
            "scores": scores,
        }
        return {"status": "success", "results": results, "stats": stats}


def summarise(sample: JsonObject) -> JsonObject:
    """What a list of samples shows."""
    found = {name: sample[name] for name in OF_SUMMARY if sample.get(name) is not None}
    texts = (each["content"] for each in sample["input"] if isinstance(each["content"], str))
    scores = {name: {"value": each["value"]} for name, each in sample["scores"].items()}
    found |= {"input": "\n".join(texts)[:LONGEST_TEXT], "scores": scores, "completed": True}
    found |= {"target": sample["target"][:LONGEST_TEXT], "message_count": len(sample["messages"])}
    if error := sample.get("error"):
        found["error"] = error["message"][:LONGEST_TEXT]
    return found


def _score(name: str, values: dict[str, list[float]], number: int) -> JsonObject:
    """The mean over tasks of each task's mean, and its standard error."""
    means = [fmean(each) for each in values.values()]
    metrics = {"mean": fmean(means)}
    if len(means) > 1:
        metrics["stderr"] = stdev(means) / math.sqrt(len(means))
    return {
        "name": name,
        "scorer": name,
        "reducer": "mean",
        "scored_samples": len(means),
        "unscored_samples": number - len(means),
        "metrics": {each: {"name": each, "value": value} for each, value in metrics.items()},
    }


def _total_usage(summaries: list[JsonObject]) -> JsonObject:
    """Tokens by model."""
    found: dict[str, dict[str, float]] = {}
    for summary in summaries:
        for model, usage in summary.get("model_usage", {}).items():
            own = found.setdefault(model, {})
            for name, value in usage.items():
                own[name] = own.get(name, 0) + value
    return dict(found)
