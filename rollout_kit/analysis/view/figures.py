"""Numbers for plots: histograms, means over time, points, figures of each agent and arm."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...store.arms.order import Place
from ...store.filters.masks import value_in
from ...store.scope import Group, parse_scope
from ...types import JsonObject
from ..metrics.aggregate import Aggregate
from .dataset import ROW_BITS, ROW_MASK, Dataset

MAX_BINS = 24

MAX_POINTS = 2000
"""Points of a scatter plot; of more, a sample is drawn and the page says so. Rollouts with equal
values are one point."""

MAX_SERIES = 8
"""Files, agents and arms that a plot tells apart; those after them are one series together."""

OTHERS = "others"

MAX_NAMES = 30
"""Texts of a histogram; the rarest are counted together."""


class _Series:
    """What a plot tells apart: file, agent and arm, as far as they differ."""

    def __init__(self, dataset: Dataset, ids: Iterable[int]) -> None:
        parts = _list_parts(dataset, ids)
        order = _order_of(dataset)
        known = sorted(set(parts), key=order)
        shown = [at for at in range(3) if len({part[at] for part in known}) > 1]
        labels = [" · ".join(filter(None, (part[at] for at in shown))) for part in known]
        is_short = len(labels) <= MAX_SERIES
        self.labels = labels if is_short else [*labels[: MAX_SERIES - 1], OTHERS]
        numbers = {part: min(at, MAX_SERIES - 1) for at, part in enumerate(known)}
        self.of_row = [numbers[part] for part in parts]
        """The number of the series of each id."""

    def count(self, values: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
        """Value → how often each series has it."""
        found: dict[Any, list[int]] = {}
        for value, number in values:
            found.setdefault(value, [0] * len(self.labels))[number] += 1
        return found


def histogram(dataset: Dataset, ids: Iterable[int], name: str) -> JsonObject:
    """Counts of a column: `bins` of (low, high, number), or `names` of (text, number). `series` has
    the names of the series, and `of_series` the numbers of each in every bin or name."""
    ids = list(ids)
    return _histogram(dataset, ids, name, _Series(dataset, ids))


def _histogram(dataset: Dataset, ids: list[int], name: str, series: _Series) -> JsonObject:
    numbers: list[tuple[float, int]] = []
    texts: list[tuple[str, int]] = []
    missing = 0
    for value, of in zip(_values(dataset, ids, name), series.of_row, strict=True):
        if value is None:
            missing += 1
        elif isinstance(value, str):
            texts.append((value, of))
        elif isinstance(value, bool):
            texts.append(("true" if value else "false", of))
        else:
            numbers.append((value, of))
    found: JsonObject = {"column": name, "missing": missing, "series": series.labels}
    if texts:
        counts = series.count(texts)
        common = sorted(counts, key=lambda text: -sum(counts[text]))[:MAX_NAMES]
        rest = len(texts) - sum(sum(counts[text]) for text in common)
        named = [(text, sum(counts[text])) for text in common]
        found |= {"names": named, "others": rest + len(numbers)}
        return found | {"of_series": [counts[text] for text in common]}
    bins = list(_bins(numbers, series))
    found["bins"] = [(low, high, sum(counts)) for low, high, counts in bins]
    return found | {"of_series": [counts for _, _, counts in bins]}


def _bins(
    numbers: list[tuple[float, int]], series: _Series
) -> Iterator[tuple[float, float, list[int]]]:
    finite = [each for each in numbers if math.isfinite(each[0])]
    if not finite:
        return
    if len({value for value, _ in finite[:100_000]}) <= MAX_BINS:
        counts = series.count(finite)
        if len(counts) <= MAX_BINS:
            for value in sorted(counts):
                yield value, value, counts[value]
            return
    low, high = min(finite)[0], max(finite)[0]
    step = _round_step((high - low) / MAX_BINS)
    first = math.floor(low / step)
    counts = series.count((int(value // step) - first, of) for value, of in finite)
    for number in range(max(counts) + 1):
        held = counts.get(number) or [0] * len(series.labels)
        yield (first + number) * step, (first + number + 1) * step, held


def _round_step(step: float) -> float:
    """The next number of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)


def plots(dataset: Dataset, ids: Iterable[int]) -> JsonObject:
    """Everything on the page of plots."""
    ids = list(ids)
    series = _Series(dataset, ids)
    columns = ("reward", "duration_s", "cost_usd", "output_tokens")
    return {
        **{name: _histogram(dataset, ids, name, series) for name in columns},
        "series": series.labels,
        "over_time": _over_time(dataset, ids, series),
        "length": _points(dataset, ids, "output_tokens", "reward", series),
        "parts": _parts(dataset, ids),
    }


def _over_time(
    dataset: Dataset, ids: list[int], series: _Series
) -> list[list[tuple[float, float, int]]]:
    """Of each series (start, mean reward, number) of up to 100 spans of equal length, which are the
    same for all; empty without a value."""
    times, rewards = (list(_values(dataset, ids, name)) for name in ("started_s", "reward"))
    known = [
        (time, reward, number)
        for time, reward, number in zip(times, rewards, series.of_row, strict=True)
        if time is not None and reward is not None
    ]
    if not known:
        return []
    first, last = min(known)[0], max(known)[0]
    span = max((last - first) / 100, 1e-3)
    sums: list[dict[int, list[float]]] = [defaultdict(list) for _ in series.labels]
    for time, reward, number in known:
        sums[number][int((time - first) / span)].append(reward)
    return [
        [
            (first + at * span, math.fsum(each) / len(each), len(each))
            for at, each in sorted(of_series.items())
        ]
        for of_series in sums
    ]


def _points(dataset: Dataset, ids: list[int], x: str, y: str, series: _Series) -> JsonObject:
    """`points` of (x, y, row id, number, series): all rollouts of a series with these values, and
    one of them. `total` and `missing` count the rollouts with and without both values, `drawn`
    those of the points."""
    held: dict[tuple[float, float, int], list[int]] = {}
    columns = (_values(dataset, ids, x), _values(dataset, ids, y), series.of_row, ids)
    for one, other, of, row_id in zip(*columns, strict=True):
        if one is not None and other is not None and math.isfinite(one) and math.isfinite(other):
            held.setdefault((one, other, of), []).append(row_id)
    places = list(held)
    if len(places) > MAX_POINTS:
        places = random.Random(0).sample(places, MAX_POINTS)
    points = [
        (one, other, held[one, other, of][0], len(held[one, other, of]), of)
        for one, other, of in places
    ]
    total = sum(map(len, held.values()))
    drawn = sum(number for *_, number, _ in points)
    return {"points": points, "total": total, "drawn": drawn, "missing": len(ids) - total}


Name = tuple[str, str, str]
"""File, agent and arm."""


def _list_parts(dataset: Dataset, ids: Iterable[int]) -> list[Name]:
    """Of each id."""
    known: dict[tuple[int, int, int], Name] = {}
    texts = [part.index.columns.texts for part in dataset.parts]
    found = []
    for row_id in ids:
        number, row = row_id >> ROW_BITS, row_id & ROW_MASK
        scopes, agents = texts[number]["scope"], texts[number]["agent"]
        codes = (number, scopes.codes[row], agents.codes[row])
        if (part := known.get(codes)) is None:
            arm = parse_scope(scopes[row] or "").arm
            part = known[codes] = (dataset.output_of(number).name, agents[row] or "", arm)
        found.append(part)
    return found


def _order_of(dataset: Dataset) -> Callable[[Name], tuple[str, str, Place]]:
    order = dataset.arm_order()
    return lambda part: (part[0], part[1], order.place_of(part[2]))


def _parts(dataset: Dataset, ids: list[int]) -> list[JsonObject]:
    """Figures of each file, agent and arm."""
    held: dict[Name, list[int]] = defaultdict(list)
    for part, row_id in zip(_list_parts(dataset, ids), ids, strict=True):
        held[part].append(row_id)
    return [
        {"file": file, "agent": agent, "arm": arm, **_figures(dataset, held[file, agent, arm])}
        for file, agent, arm in sorted(held, key=_order_of(dataset))
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
