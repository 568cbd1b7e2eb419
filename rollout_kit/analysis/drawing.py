"""Plots of rewards and shares, drawn without a browser."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .shapes import Box, Curve, Dot, Drawing, Label, Segment, Shape

WIDTH, ROW, LABEL = 640, 26, 290

NUM_COLOURS = 6

APART = 5
"""Points between the intervals of two lines."""


class Whisker(NamedTuple):
    """A value with its interval; `series` chooses its colour."""

    label: str
    value: float
    interval: Sequence[float] | None
    series: int | None = None


class Point(NamedTuple):
    """A share from 0 to 1 with its interval."""

    value: float
    interval: Sequence[float] | None = None


def draw_whiskers(
    whiskers: Sequence[Whisker], axis: str = "", series: Sequence[str] = ()
) -> Drawing:
    """A row for each value: a dot, and a line for its interval. The scale is from 0 to 1 if all lie
    there. `axis` is written below it, and the names of the `series` under that."""
    legend = _draw_legend(series, ROW * len(whiskers) + (44 if axis else 30))
    bottom = ROW * len(whiskers) + 4
    low, high, ticks = _find_scale(whiskers)
    scale = (WIDTH - LABEL - 60) / (high - low)

    def at(value: float) -> float:
        return LABEL + (min(high, max(low, value)) - low) * scale

    shapes: list[Shape] = []
    for tick in ticks:
        shapes.append(Segment(at(tick), 0, at(tick), bottom, "grid"))
        shapes.append(Label(at(tick), bottom + 14, f"{tick:g}", "middle"))
    for number, (label, value, interval, which) in enumerate(whiskers):
        y = ROW * number + ROW / 2
        shapes.append(Label(LABEL - 10, y + 4, _shorten(label, 44), "end", label))
        range_, dot = ("range", "dot") if which is None else (_colour(which), _colour(which))
        if interval:
            shapes.append(Segment(at(interval[0]), y, at(interval[1]), y, range_))
        shapes.append(Dot(at(value), y, 5, dot))
        shapes.append(Label(WIDTH - 50, y + 4, f"{value:.3f}", "start"))
    height = bottom + 20
    if axis:
        shapes.append(Segment(LABEL, bottom, WIDTH - 60, bottom, "axis"))
        shapes.append(Label((LABEL + WIDTH - 60) / 2, bottom + 32, axis, "middle"))
        height = bottom + 42
    if legend:
        height += 18 * len(series)
    return Drawing(WIDTH, height, axis or "rewards with their 95 % intervals", [*shapes, *legend])


def draw_lines(
    lines: Mapping[str, Mapping[str, Point]], what: str = "pass@k", axes: Sequence[str] = ()
) -> Drawing:
    """A line for each name, over its points: k → a share from 0 to 1. The axis of k is
    logarithmic. `axes` are the texts below and on the left."""
    ks = sorted({int(k) for points in lines.values() for k in points})
    left, right, top = 58 if axes else 40, WIDTH - 250, 10
    height = 240 if axes else 220
    bottom = height - (52 if axes else 30)
    span = math.log(ks[-1] / ks[0]) if len(ks) > 1 else 1.0
    place = {k: left + (right - left) * math.log(k / ks[0]) / span for k in ks}
    names = {k: f"{k}" if axes else f"k = {k}" for k in ks}
    shapes: list[Shape] = [Label(place[k], bottom + 20, names[k], "middle") for k in ks]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - tick * (bottom - top)
        shapes.append(Segment(left, y, right, y, "grid"))
        shapes.append(Label(left - 6, y + 4, f"{tick:g}", "end"))
    if axes:
        shapes.append(Segment(left, bottom, right, bottom, "axis"))
        shapes.append(Segment(left, top, left, bottom, "axis"))
        shapes.append(Label((left + right) / 2, bottom + 42, axes[0], "middle"))
        shapes.append(Label(14, (top + bottom) / 2, axes[1], "middle", turned=True))
    for number, points in enumerate(lines.values()):
        colour = _colour(number)
        # so that the intervals of several lines do not hide each other
        aside = APART * (number - (len(lines) - 1) / 2) if axes else 0
        corners = [(place[k] + aside, points[str(k)]) for k in ks if str(k) in points]
        above = [(x, bottom - _within(point.value) * (bottom - top)) for x, point in corners]
        shapes.append(Curve(above, colour))
        shapes += [Dot(x, y, 3, colour) for x, y in above]
        for x, point in corners:
            if point.interval:
                low, high = (bottom - _within(end) * (bottom - top) for end in point.interval)
                shapes.append(Segment(x, low, x, high, colour))
    shapes += _draw_legend(list(lines), top, right + 16)
    return Drawing(WIDTH, max(height, top + 18 * len(lines)), what, shapes)


def draw_bars(bars: Sequence[tuple[str, int]], what: str) -> Drawing | str:
    """A column for each (label, number); empty without any."""
    if not bars:
        return ""
    height, top = 170, 20
    bottom = height - 22
    most, width = max(number for _, number in bars) or 1, (WIDTH - 20) / max(len(bars), 6)
    shapes: list[Shape] = []
    for at, (label, number) in enumerate(bars):
        x, tall = 10 + at * width, (bottom - top) * number / most
        shapes.append(Box(x, bottom - tall, width - 3, tall, "bar", f"{label}: {number:,}"))
        shapes.append(Label(x + width / 2, bottom - tall - 4, f"{number:,}", "middle"))
        shapes.append(Label(x + width / 2, height - 6, _shorten(label, 12), "middle"))
    return Drawing(WIDTH, height, what, shapes)


def _draw_legend(names: Sequence[str], top: float, left: float = LABEL) -> list[Shape]:
    shapes: list[Shape] = []
    for number, name in enumerate(names):
        y = top + 18 * number
        shapes.append(Box(left, y, 10, 10, _colour(number)))
        shapes.append(Label(left + 16, y + 9, _shorten(name, 36), "start", name))
    return shapes


def _find_scale(whiskers: Sequence[Whisker]) -> tuple[float, float, Sequence[float]]:
    """Ends of the axis, and its ticks."""
    ends = [end for each in whiskers for end in (each.value, *(each.interval or ()))]
    if all(0 <= each.value <= 1 for each in whiskers):
        return 0, 1, (0, 0.25, 0.5, 0.75, 1)
    low, high = min(ends), max(ends)
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
    step *= next(factor for factor in (0.2, 0.5, 1, 2, 5) if (high - low) / (step * factor) <= 5)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    ticks = [number * step for number in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _colour(series: int) -> str:
    return f"line-{series % NUM_COLOURS}"


def _shorten(text: str, most: int) -> str:
    """The text without its middle if it is long: files differ at its start, arms at its end."""
    half = most // 2
    return text if len(text) <= most else f"{text[: most - half - 1]}…{text[-half:]}"


def _within(value: float) -> float:
    return min(1.0, max(0.0, value))
