"""Learning curves of an RL run: the reward of evaluations, and of training rollouts, by version."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...reading import parse_line, read_lines
from ...store.index import LineChanged
from ...types import JsonObject
from ..metrics.groups import Moments
from .chosen import Chosen, Series
from .dataset import Dataset

MAX_READ = 2000
"""Rollouts of a series whose version is read, evenly spread: the index does not hold it."""

TRAINING = "training"


def read_learning(dataset: Dataset, series: Series) -> list[JsonObject]:
    """Curves with their `name` and `points` of (version, reward, low, high, number of rollouts);
    those of a file that is no RL run are left out."""
    found = []
    for label, parts in zip(series.labels, series.chosen, strict=True):
        if points := list(_read_training(dataset, parts)):
            name = " · ".join(filter(None, (label, TRAINING)))
            found.append({"name": name, "points": points})
    numbers = {part.number for part in chain(*series.chosen)}
    outputs = {dataset.output_of(number).name: dataset.output_of(number) for number in numbers}
    for file, output in outputs.items():
        curves = _read_evaluations(output.paths.main.with_suffix(".d") / "evaluations.jsonl")
        for name, points in curves.items():
            shown = f"{file} · {name}" if len(outputs) > 1 else name
            found.append({"name": shown, "points": sorted(points)})
    return found


def _read_evaluations(path: Path) -> dict[str, list[list[Any]]]:
    """Set → points."""
    found = defaultdict[str, list[list[Any]]](list)
    with suppress(OSError, ConfigError):
        for _, raw in read_lines(path):
            line = parse_line(raw) or {}
            if isinstance(line.get("version"), int) and isinstance(line.get("reward"), int | float):
                bounds = [line.get(name) for name in ("reward_low", "reward_high", "rollouts")]
                found[str(line.get("set"))].append([line["version"], line["reward"], *bounds])
    return found


def _read_training(dataset: Dataset, parts: list[Chosen]) -> Iterator[list[Any]]:
    rewards = defaultdict[int, list[float]](list)
    for part in parts:
        index = dataset.parts[part.number].index
        rows = part.rows[:: max(1, -(-len(part.rows) // MAX_READ))]
        with suppress(LineChanged):
            for row, raw in zip(rows, index.lines(rows), strict=True):
                version, reward = _version_in(raw), part.columns.numbers["reward"][row]
                if version is None:
                    break  # no RL run
                if reward - reward == 0:
                    rewards[version].append(reward)
    for version, values in sorted(rewards.items()):
        whole = Moments.of(values)
        error = (max(0.0, whole.squares / whole.count - whole.mean**2) / whole.count) ** 0.5
        low, high = whole.interval(error, whole.count) if whole.count > 1 else (None, None)
        yield [version, whole.mean, low, high, whole.count]


def _version_in(raw: bytes) -> int | None:
    from msgspec import DecodeError

    try:
        return _decoder()(raw).rollout.version_first
    except DecodeError:
        return None


@cache
def _decoder() -> Any:
    from msgspec import defstruct, json

    block = defstruct("VersionBlock", [("version_first", int | None, None)])
    return json.Decoder(defstruct("VersionedLine", [("rollout", block)])).decode
