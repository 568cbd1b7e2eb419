"""Plots as SVG, drawn without a browser. Text is escaped; the style sheet has the colours."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, ROW, LABEL = 640, 26, 290


class Whisker(NamedTuple):
    """A value from 0 to 1 with its interval."""

    label: str
    value: float
    interval: Sequence[float] | None


def draw_whiskers(whiskers: Sequence[Whisker]) -> str:
    """A row for each value: a dot, and a line for its interval, on a scale from 0 to 1."""
    height = ROW * len(whiskers) + 24
    scale = WIDTH - LABEL - 60
    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = LABEL + tick * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 20}"/>')
        parts.append(_text(x, height - 6, f"{tick:g}", "middle"))
    for number, (label, value, interval) in enumerate(whiskers):
        y, x = ROW * number + ROW / 2, LABEL + _within(value) * scale
        parts.append(_text(LABEL - 10, y + 4, _shorten(label, 44), "end", label))
        if interval:
            low, high = (LABEL + _within(each) * scale for each in interval)
            parts.append(f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y}" r="5"/>')
        parts.append(_text(WIDTH - 50, y + 4, f"{value:.3f}", "start"))
    return _svg(height, "rewards with their 95 % intervals", parts)


def draw_lines(lines: dict[str, dict[str, float]]) -> str:
    """A line for each name, over its points: k → a share from 0 to 1. The k are powers of two."""
    ks = sorted({int(k) for points in lines.values() for k in points})
    height, left, right, top = 220, 40, WIDTH - 250, 10
    bottom = height - 30
    place = {k: left + (right - left) * at / max(1, len(ks) - 1) for at, k in enumerate(ks)}
    parts = [_text(place[k], height - 10, f"k = {k}", "middle") for k in ks]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - tick * (bottom - top)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, f"{tick:g}", "end"))
    for number, (name, points) in enumerate(lines.items()):
        corners = [
            (place[k], bottom - _within(points[str(k)]) * (bottom - top))
            for k in ks
            if str(k) in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        colour = f"line-{number % 6}"
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        parts += [f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in corners]
        y = top + 8 + 18 * number
        parts.append(f'<rect class="{colour}" x="{right + 16}" y="{y}" width="10" height="10"/>')
        parts.append(_text(right + 32, y + 9, _shorten(name, 36), "start", name))
    return _svg(height, "pass@k", parts)


def draw_bars(bars: Sequence[tuple[str, int]], what: str) -> str:
    """A column for each (label, number)."""
    if not bars:
        return ""
    height, top = 170, 20
    bottom = height - 22
    most, width = max(number for _, number in bars) or 1, (WIDTH - 20) / max(len(bars), 6)
    parts = []
    for at, (label, number) in enumerate(bars):
        x, tall = 10 + at * width, (bottom - top) * number / most
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{bottom - tall:.1f}" width="{width - 3:.1f}"'
            f' height="{tall:.1f}"><title>{escape(label)}: {number:,}</title></rect>'
        )
        parts.append(_text(x + width / 2, bottom - tall - 4, f"{number:,}", "middle"))
        parts.append(_text(x + width / 2, height - 6, _shorten(label, 12), "middle"))
    return _svg(height, what, parts)


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, title: str = "") -> str:
    inner = escape(text) + (f"<title>{escape(title)}</title>" if title else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{inner}</text>'


def _shorten(text: str, most: int) -> str:
    """The text without its middle if it is long: files differ at its start, arms at its end."""
    half = most // 2
    return text if len(text) <= most else f"{text[: most - half - 1]}…{text[-half:]}"


def _within(value: float) -> float:
    return min(1.0, max(0.0, value))
