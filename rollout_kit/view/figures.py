"""Numbers for plots: histograms, means over time, points, figures of each agent and arm."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from ..export.filters.masks import value_in
from ..metrics.aggregate import Aggregate
from ..store.arms.order import Place
from ..store.groups.scope import Group, parse_scope
from ..types import JsonObject
from .dataset import ROW_BITS, ROW_MASK, Dataset

MAX_BINS = 24

MAX_POINTS = 2000
"""Points of a scatter plot; more are sampled."""

MAX_NAMES = 30
"""Texts of a histogram; the rarest are counted together."""


def histogram(dataset: Dataset, ids: Iterable[int], name: str) -> JsonObject:
    """Counts of a column: `bins` of (low, high, number), or `names` of (text, number)."""
    numbers, texts, missing = array("d"), Counter[str](), 0
    for value in _values(dataset, ids, name):
        if value is None:
            missing += 1
        elif isinstance(value, str):
            texts[value] += 1
        elif isinstance(value, bool):
            texts["true" if value else "false"] += 1
        else:
            numbers.append(value)
    found: JsonObject = {"column": name, "missing": missing}
    if texts:
        common = texts.most_common(MAX_NAMES)
        rest = texts.total() - sum(number for _, number in common)
        return found | {"names": common, "others": rest + len(numbers)}
    return found | {"bins": list(_bins(numbers))}


def _bins(numbers: array[float]) -> Iterator[tuple[float, float, int]]:
    finite = [each for each in numbers if math.isfinite(each)]
    if not finite:
        return
    distinct = set(finite[:100_000])
    if len(distinct) <= MAX_BINS:
        counts = Counter(finite)
        if len(counts) <= MAX_BINS:
            for value in sorted(counts):
                yield value, value, counts[value]
            return
    low, high = min(finite), max(finite)
    step = _round_step((high - low) / MAX_BINS)
    first = math.floor(low / step)
    counts = Counter(int(each // step) - first for each in finite)
    for number in range(max(counts) + 1):
        yield (first + number) * step, (first + number + 1) * step, counts[number]


def _round_step(step: float) -> float:
    """The next number of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)


def plots(dataset: Dataset, ids: Iterable[int]) -> JsonObject:
    """Everything on the page of plots."""
    ids = list(ids)
    return {
        "reward": histogram(dataset, ids, "reward"),
        "duration_s": histogram(dataset, ids, "duration_s"),
        "cost_usd": histogram(dataset, ids, "cost_usd"),
        "output_tokens": histogram(dataset, ids, "output_tokens"),
        "over_time": _over_time(dataset, ids),
        "length": _points(dataset, ids, "output_tokens", "reward"),
        "parts": _parts(dataset, ids),
    }


def _over_time(dataset: Dataset, ids: list[int]) -> list[tuple[float, float, int]]:
    """(start, mean reward, number) of up to 100 spans of equal length."""
    times, rewards = (list(_values(dataset, ids, name)) for name in ("started_s", "reward"))
    pairs = [
        (time, reward)
        for time, reward in zip(times, rewards, strict=True)
        if time is not None and reward is not None
    ]
    if not pairs:
        return []
    first, last = min(pairs)[0], max(pairs)[0]
    span = max((last - first) / 100, 1e-3)
    sums: dict[int, list[float]] = defaultdict(list)
    for time, reward in pairs:
        sums[int((time - first) / span)].append(reward)
    return [
        (first + number * span, math.fsum(each) / len(each), len(each))
        for number, each in sorted(sums.items())
    ]


def _points(dataset: Dataset, ids: list[int], x: str, y: str) -> list[tuple[float, float, int]]:
    """(x, y, row id) of a sample."""
    chosen = ids if len(ids) <= MAX_POINTS else random.Random(0).sample(ids, MAX_POINTS)
    xs, ys = (_values(dataset, chosen, name) for name in (x, y))
    return [
        (one, other, row_id)
        for one, other, row_id in zip(xs, ys, chosen, strict=True)
        if one is not None and other is not None
    ]


def _parts(dataset: Dataset, ids: list[int]) -> list[JsonObject]:
    """Figures of each file, agent and arm."""
    held: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row_id in ids:
        number, row = row_id >> ROW_BITS, row_id & ROW_MASK
        texts = dataset.parts[number].index.columns.texts
        arm = parse_scope(texts["scope"][row] or "").arm
        held[dataset.output_of(number).name, texts["agent"][row] or "", arm].append(row_id)

    order = dataset.arm_order()

    def place_of(part: tuple[str, str, str]) -> tuple[str, str, Place]:
        file, agent, arm = part
        return file, agent, order.place_of(arm)

    return [
        {"file": file, "agent": agent, "arm": arm, **_figures(dataset, held[file, agent, arm])}
        for file, agent, arm in sorted(held, key=place_of)
    ]


def _figures(dataset: Dataset, ids: list[int]) -> JsonObject:
    statuses = Counter(_values(dataset, ids, "status"))
    by_task: dict[str, list[float]] = defaultdict(list)
    pairs = zip(_values(dataset, ids, "task_id"), _values(dataset, ids, "reward"), strict=True)
    for task, reward in pairs:
        if reward is not None:
            by_task[task].append(reward)
    part = Aggregate()
    for number, (task, rewards) in enumerate(by_task.items()):
        part.add_numbers(Group(task, "", ""), number, "reward", rewards)
    known = part.numbers.get("reward")
    found: JsonObject = {
        "rollouts": len(ids),
        "tasks": len(by_task),
        "failed": statuses["failed"],
        "unverified": statuses["unverified"],
        "reward": known.mean if known else None,
        "interval": part.interval("reward"),
    }
    for name in ("num_turns", "output_tokens", "duration_s", "cost_usd"):
        values = [each for each in _values(dataset, ids, name) if each is not None]
        found[name] = math.fsum(values) / len(values) if values else None
    return found


def _values(dataset: Dataset, ids: Iterable[int], name: str) -> Iterator[Any]:
    """The values of a column; ConfigError if no file has it."""
    dataset.check_column(name)
    columns = [part.index.columns for part in dataset.parts]
    for row_id in ids:
        yield value_in(columns[row_id >> ROW_BITS], name, row_id & ROW_MASK)
