"""Numbers for plots: histograms, means over time, points, figures of each agent and arm.

They are made of whole columns: a million rows take about two seconds.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Any

from ...types import JsonObject
from ..metrics.aggregate import cluster
from ..metrics.groups import Moments
from .chosen import Chosen, Series
from .dataset import Dataset
from .learning import read_learning

MAX_BINS = 24

MAX_POINTS = 2000
"""Points of a scatter plot; of more, a sample is drawn and the page says so. Rollouts with equal
values are one point."""

MAX_NAMES = 30
"""Texts of a histogram; the rarest are counted together."""

SAMPLED = 100_000
"""Values in which it is looked whether there are few different ones."""

MAX_COUNTED = 4
"""Different rewards of which each is counted on its own."""

MAX_SPANS = 100
"""Spans of time of a plot over time."""


def histogram(dataset: Dataset, ids: Iterable[int], name: str) -> JsonObject:
    """Counts of a column: `bins` of (low, high, number), or `names` of (text, number). `series` has
    the names of the series, and `of_series` the numbers of each in every bin or name. ConfigError
    if no file has the column."""
    dataset.check_column(name)
    return _histogram(Series(dataset, ids), name)


def _histogram(series: Series, name: str) -> JsonObject:
    numbers, texts, missing = [], list[Counter[str]](), 0
    for parts in series.chosen:
        own, named = list[float](), Counter[str]()
        for part in parts:
            values, said = _read(part, name)
            missing += len(part.rows) - len(values) - said.total()
            own += values
            named += said
        numbers.append(own)
        texts.append(named)
    found: JsonObject = {"column": name, "missing": missing, "series": series.labels}
    if any(texts):
        counts = series.counts(texts)
        common = sorted(counts, key=lambda text: -sum(counts[text]))[:MAX_NAMES]
        rest = sum(each.total() for each in texts) - sum(sum(counts[text]) for text in common)
        named = [(text, sum(counts[text])) for text in common]
        found |= {"names": named, "others": rest + sum(map(len, numbers))}
        return found | {"of_series": [counts[text] for text in common]}
    bins = list(_bins(series, numbers))
    found["bins"] = [(low, high, sum(counts)) for low, high, counts in bins]
    return found | {"of_series": [counts for _, _, counts in bins]}


def _read(part: Chosen, name: str) -> tuple[Sequence[float], Counter[str]]:
    """The numbers of a column, and how often it has each text."""
    if part.is_plain(name):
        return part.numbers(name), Counter()
    numbers, texts = list[float](), Counter[str]()
    for value, number in Counter(part.values(name)).items():
        if isinstance(value, bool):
            texts["true" if value else "false"] += number
        elif isinstance(value, str):
            texts[value] += number
        elif value is not None:
            numbers += [value] * number
    return numbers, texts


def _bins(
    series: Series, numbers: Sequence[Sequence[float]]
) -> Iterator[tuple[float, float, list[int]]]:
    if not (known := [each for each in numbers if each]):
        return
    if len(set(islice(chain.from_iterable(known), SAMPLED))) <= MAX_BINS:
        counts = series.counts(list(map(Counter, numbers)))
        if len(counts) <= MAX_BINS:
            for value in sorted(counts):
                yield value, value, counts[value]
            return
    low, high = min(map(min, known)), max(map(max, known))
    step = _round_step((high - low) / MAX_BINS)
    first = low // step
    counts = series.counts([Counter(map(step.__rfloordiv__, each)) for each in numbers])
    for number in range(int(max(counts) - first) + 1):
        held = counts.get(first + number) or [0] * len(series.labels)
        yield (first + number) * step, (first + number + 1) * step, held


def _round_step(step: float) -> float:
    """The next number of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)


def plots(dataset: Dataset, ids: Iterable[int]) -> JsonObject:
    """Everything on the page of plots."""
    series = Series(dataset, ids)
    columns = ("reward", "duration_s", "cost_usd", "output_tokens")
    return {
        **{name: _histogram(series, name) for name in columns},
        "series": series.labels,
        "over_time": _over_time(series),
        "length": _points(series, "output_tokens", "reward"),
        "parts": [
            {**dict(zip(("file", "agent", "arm"), name, strict=True)), **_figures(chosen)}
            for name, chosen in series.parts.items()
        ],
        "learning": read_learning(dataset, series),
    }


def _over_time(series: Series) -> list[list[tuple[float, float, int]]]:
    """Of each series (start, mean reward, number) of up to MAX_SPANS spans of equal length, which
    are the same for all; empty without a value."""
    times, rewards = [list[float]() for _ in series.chosen], [list[float]() for _ in series.chosen]
    for of, parts in enumerate(series.chosen):
        for part in parts:
            known, columns = part.known("started_s", "reward"), part.columns.numbers
            times[of] += known.gather(columns["started_s"])
            rewards[of] += known.gather(columns["reward"])
    if not any(times):
        return []
    first, last = min(min(each) for each in times if each), max(max(each) for each in times if each)
    span = max((last - first) / MAX_SPANS, 1e-3)
    found = []
    for of, each in enumerate(times):
        places = [int((time - first) / span) for time in each]
        means = _means(Counter(zip(places, rewards[of], strict=True)))
        found.append([(first + at * span, mean, number) for at, mean, number in means])
    return found


def _means(alike: Counter[tuple[int, float]]) -> Iterator[tuple[int, float, int]]:
    """Place, mean and number of values, from how often each value stands at each place."""
    totals, numbers = dict[int, list[float]](), Counter[int]()
    for (at, value), number in alike.items():
        totals.setdefault(at, []).append(value * number)
        numbers[at] += number
    for at in sorted(totals):
        yield at, math.fsum(totals[at]) / numbers[at], numbers[at]


def _points(series: Series, x: str, y: str) -> JsonObject:
    """`points` of (x, y, row id, number, series): all rollouts of a series with these values, and
    one of them. `total` and `missing` count the rollouts with and without both values, `drawn`
    those of the points."""
    held, ids = Counter[tuple[int, float, float]](), dict[tuple[int, float, float], int]()
    for of, parts in enumerate(series.chosen):
        for part in parts:
            known, columns = part.known(x, y), part.columns.numbers
            xs, ys = known.gather(columns[x]), known.gather(columns[y])
            alike = Counter(zip(xs, ys, strict=True))
            held += Counter({(of, *pair): number for pair, number in alike.items()})
            for begin in range(0, len(xs), SAMPLED):  # most of them stand in the first rows
                if len(ids) == len(held):
                    break
                rows = slice(begin, begin + SAMPLED)
                ones = zip(xs[rows], ys[rows], known.ids(rows), strict=True)
                ids |= {(of, one, other): row_id for one, other, row_id in ones}
    places = list(held)
    if len(places) > MAX_POINTS:
        places = random.Random(0).sample(places, MAX_POINTS)
    points = [(*place[1:], ids[place], held[place], place[0]) for place in places]
    total, rows = held.total(), sum(len(part.rows) for part in chain(*series.chosen))
    drawn = sum(number for *_, number, _ in points)
    return {"points": points, "total": total, "drawn": drawn, "missing": rows - total}


def _figures(parts: Sequence[Chosen]) -> JsonObject:
    """Those of a file, agent and arm."""
    rewards, tasks, failed = list[float](), list[Any](), 0
    for part in parts:
        failed += _count_failed(part)
        known = part.known("reward")
        rewards += known.gather(part.columns.numbers["reward"])
        tasks += _tasks_of(known)
    rows = sum(len(part.rows) for part in parts)
    whole = Moments.of(rewards) if rewards else None
    sums = _sums_of(tasks, rewards)
    found: JsonObject = {
        "rollouts": rows,
        "tasks": len(sums),
        "failed": failed,
        "unverified": rows - failed - len(rewards),
        "reward": whole.mean if whole else None,
        "interval": cluster(whole, sums) if whole else None,
    }
    for name in ("num_turns", "output_tokens", "duration_s", "cost_usd"):
        values = [part.numbers(name) for part in parts]
        number = sum(map(len, values))
        found[name] = math.fsum(chain.from_iterable(values)) / number if number else None
    return found


def _sums_of(tasks: Sequence[Any], rewards: Sequence[float]) -> list[tuple[int, float]]:
    """The number of rewards of each task, and their sum. Few different rewards are counted, which
    takes a third of the time of adding them."""
    counts = Counter(tasks)
    totals = dict.fromkeys(counts, 0.0)
    if len(kinds := set(rewards)) <= MAX_COUNTED:
        for reward in kinds - {0.0}:
            alike = Counter(compress(tasks, map(reward.__eq__, rewards)))
            for task, number in alike.items():
                totals[task] += reward * number
    else:
        for task, reward in zip(tasks, rewards, strict=True):
            totals[task] += reward
    return list(zip(counts.values(), totals.values(), strict=True))


def _count_failed(part: Chosen) -> int:
    kinds = part.columns.texts["kind"]
    if "failure" not in (names := list(kinds.names)):
        return 0
    return Counter(part.gather(kinds.codes))[names.index("failure")]


def _tasks_of(part: Chosen) -> Sequence[Any]:
    """The task of each row: by its number, where all have one."""
    columns = part.columns
    if len(columns.texts["id_text"].names) > 1:
        return list(map(columns.task_id, part.rows))
    return part.gather(columns.tasks)
