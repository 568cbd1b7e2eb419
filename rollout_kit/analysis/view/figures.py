"""Numbers for plots: histograms, means over time, points, figures of each agent and arm.

They are made of whole columns: a million rows take about a second.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice, repeat
from typing import Any

from ...types import JsonObject
from ..metrics.aggregate import cluster
from ..metrics.groups import Moments
from .alike import SAMPLED, find_alike
from .chosen import Chosen, Known, Series
from .dataset import Dataset
from .learning import read_learning

MAX_BINS = 24

MAX_POINTS = 2000
"""Points of a scatter plot; of more, a sample is drawn and the page says so. Rollouts with equal
values are one point."""

MAX_NAMES = 30
"""Texts of a histogram; the rarest are counted together."""

MAX_COUNTED = 4
"""Different rewards of which each is counted on its own."""

MAX_SPANS = 100
"""Spans of time of a plot over time."""


def histogram(dataset: Dataset, ids: Sequence[int], name: str) -> JsonObject:
    """Counts of a column: `bins` of (low, high, number), or `names` of (text, number). `series` has
    the names of the series, and `of_series` the numbers of each in every bin or name. ConfigError
    if no file has the column."""
    dataset.check_column(name)
    return _histogram(Series(dataset, ids), name)


def _histogram(series: Series, name: str) -> JsonObject:
    numbers, texts, missing = [], list[Counter[str]](), 0
    for parts in series.chosen:
        read = [_read(part, name) for part in parts]
        numbers.append([known for known, _ in read])
        texts.append(_add_up(said for _, said in read))
        missing += sum(len(part.rows) for part in parts) - texts[-1].total()
    num_numbers = sum(known.num_rows for known in chain(*numbers))
    found: JsonObject = {"column": name, "missing": missing - num_numbers, "series": series.labels}
    if any(texts):
        counts = series.counts(texts)
        common = sorted(counts, key=lambda text: -sum(counts[text]))[:MAX_NAMES]
        rest = sum(each.total() for each in texts) - sum(sum(counts[text]) for text in common)
        named = [(text, sum(counts[text])) for text in common]
        found |= {"names": named, "others": rest + num_numbers}
        return found | {"of_series": [counts[text] for text in common]}
    bins = list(_bins(series, numbers))
    found["bins"] = [(low, high, sum(counts)) for low, high, counts in bins]
    return found | {"of_series": [counts for _, _, counts in bins]}


def _add_up(counts: Iterable[Counter[Any]]) -> Counter[Any]:
    found = Counter[Any]()
    for each in counts:
        found.update(each)
    return found


def _read(part: Chosen, name: str) -> tuple[Known, Counter[str]]:
    """The numbers of a column, and how often it has each text."""
    if part.is_plain(name):
        return part.known(name), Counter()
    numbers, texts = dict[float, int](), Counter[str]()
    for value, number in Counter(part.values(name)).items():
        if isinstance(value, bool):
            texts["true" if value else "false"] += number
        elif isinstance(value, str):
            texts[value] += number
        elif value is not None:
            numbers[value] = number
    return Known([list(numbers)], list(numbers.values())), texts


def _bins(
    series: Series, numbers: Sequence[Sequence[Known]]
) -> Iterator[tuple[float, float, list[int]]]:
    values = [known.numbers for known in chain(*numbers) if known.numbers]
    if not values:
        return

    def count(key: Callable[[float], float]) -> dict[float, list[int]]:
        each = (_add_up(part.count(map(key, part.numbers)) for part in own) for own in numbers)
        return series.counts(list(each))

    if len(set(islice(chain(*values), SAMPLED))) <= MAX_BINS:
        counts = count(float)
        if len(counts) <= MAX_BINS:
            for value in sorted(counts):
                yield value, value, counts[value]
            return
    low, high = min(map(min, values)), max(map(max, values))
    step = _round_step((high - low) / MAX_BINS)
    first = low // step
    counts = count(step.__rfloordiv__)
    for number in range(int(max(counts) - first) + 1):
        held = counts.get(first + number) or [0] * len(series.labels)
        yield (first + number) * step, (first + number + 1) * step, held


def _round_step(step: float) -> float:
    """The next number of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)


def plots(dataset: Dataset, ids: Sequence[int]) -> JsonObject:
    """Everything on the page of plots."""
    series = Series(dataset, ids)
    length = _points(series, "output_tokens", "reward")  # first: it counts columns of the others
    columns = ("reward", "duration_s", "cost_usd", "output_tokens")
    return {
        **{name: _histogram(series, name) for name in columns},
        "series": series.labels,
        "over_time": _over_time(series),
        "length": length,
        "parts": [
            {**dict(zip(("file", "agent", "arm"), name, strict=True)), **_figures(chosen)}
            for name, chosen in series.parts.items()
        ],
        "learning": read_learning(dataset, series),
    }


def _over_time(series: Series) -> list[list[tuple[float, float, int]]]:
    """Of each series (start, mean reward, number) of up to MAX_SPANS spans of equal length, which
    are the same for all; empty without a value."""
    known = [[part.known("started_s", "reward") for part in parts] for parts in series.chosen]
    starts = [each.columns[0] for each in chain(*known) if each.columns[0]]
    if not starts:
        return []
    first, last = min(map(min, starts)), max(map(max, starts))
    span = max((last - first) / MAX_SPANS, 1e-3)
    found = []
    for parts in known:
        alike = Counter[tuple[int, float]]()
        for part in parts:
            times, rewards = part.columns
            places = array("B", [int((time - first) / span) for time in times])
            rows = enumerate(part.times or ())
            if part.times is None:
                rows = find_alike([places, array("d", rewards)])
            for at, number in rows:
                alike[places[at], rewards[at]] += number
        found.append([(first + at * span, mean, number) for at, mean, number in _means(alike)])
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
            xs, ys = part.numbers(x), part.numbers(y)
            for at, number in part.alike(x, y):
                if math.isfinite(xs[at]) and math.isfinite(ys[at]):
                    place = of, xs[at], ys[at]
                    held[place] += number
                    ids[place] = part.id_of(at)
    places = list(held)
    if len(places) > MAX_POINTS:
        places = random.Random(0).sample(places, MAX_POINTS)
    points = [(*place[1:], ids[place], held[place], place[0]) for place in places]
    total, rows = held.total(), sum(len(part.rows) for part in chain(*series.chosen))
    drawn = sum(number for *_, number, _ in points)
    return {"points": points, "total": total, "drawn": drawn, "missing": rows - total}


def _figures(parts: Sequence[Chosen]) -> JsonObject:
    """Those of a file, agent and arm."""
    rewards, failed = [part.known("reward") for part in parts], sum(map(_count_failed, parts))
    rows, num_known = sum(len(part.rows) for part in parts), sum(each.num_rows for each in rewards)
    whole, sums = Moments(), _sums_of(parts, rewards)
    for each in rewards:
        if each.numbers:
            times = repeat(1) if each.times is None else each.times
            whole.merge(Moments.of_alike(list(zip(each.numbers, times, strict=False))))
    found: JsonObject = {
        "rollouts": rows,
        "tasks": len(sums),
        "failed": failed,
        "unverified": rows - failed - num_known,
        "reward": whole.mean if num_known else None,
        "interval": cluster(whole, sums) if num_known else None,
    }
    for name in ("num_turns", "output_tokens", "duration_s", "cost_usd"):
        values = [part.known(name) for part in parts]
        number = sum(each.num_rows for each in values)
        total = math.fsum(chain.from_iterable(each.each() for each in values))
        found[name] = total / number if number else None
    return found


def _sums_of(parts: Sequence[Chosen], known: Sequence[Known]) -> list[tuple[int, float]]:
    """The number of rewards of each task, and their sum. Few different rewards are counted, which
    takes a third of the time of adding them."""
    verified = [part.with_number("reward") for part in parts]
    tasks = [_tasks_of(part) for part in verified]
    rewards = [part.numbers("reward") for part in verified]
    counts = Counter[Any](chain(*tasks))
    kinds = set(chain.from_iterable(each.numbers for each in known)) - {0.0}
    if len(kinds) < MAX_COUNTED:
        totals = [0.0] * len(counts)
        for kind in kinds:
            has_it = chain(*rewards) if len(kinds) == 1 else map(kind.__eq__, chain(*rewards))
            alike = Counter(compress(chain(*tasks), has_it))
            numbers = map(alike.get, counts, repeat(0))
            totals = [total + kind * number for total, number in zip(totals, numbers, strict=True)]
    else:
        sums = dict.fromkeys(counts, 0.0)
        for task, reward in zip(chain(*tasks), chain(*rewards), strict=True):
            sums[task] += reward
        totals = list(sums.values())
    return list(zip(counts.values(), totals, strict=True))


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
