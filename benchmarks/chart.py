"""Draws the chart of the README from a table of docs/performance.md, as SVG.

python -m benchmarks.chart    # after a change of the table
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import floor, log2, log10
from pathlib import Path
from typing import NamedTuple

CHART = "images/collectors.svg"
"""The file, in the folder of the page."""

TABLE = "## Compared with other collectors"

OURS = "rollout_kit"

BOLD = ' style="font-weight: 600"'

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px }
.bar { fill: #9aa4b2 }
.ours { fill: #3f51b5 }
.ground { fill: #ffffff }
.line { fill: none; stroke: #9aa4b2; stroke-width: 2 }
.line.ours { fill: none; stroke: #3f51b5; stroke-width: 3.5 }
.grid { stroke: #d0d7de }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .bar { fill: #6b7686 }
  .ours { fill: #8c9eff }
  .ground { fill: #0d1117 }
  .line { stroke: #6b7686 }
  .line.ours { fill: none; stroke: #8c9eff }
  .grid { stroke: #30363d }
}
"""

WIDTH, ROW, TOP, NAMES, FIGURES = 640, 26, 44, 250, 80
"""Width of a panel, height of a bar with its gap, of the title, and room for names and figures."""

LEFT, RIGHT, PLOT, LABEL = 56, 260, 190, 16
"""Of the lines: room on the left for figures and on the right for names, the height of the plot,
and the height of a name."""


class Bar(NamedTuple):
    """A collector and its figure."""

    name: str
    value: float
    text: str


def write_chart(page: Path) -> None:
    """Draw the chart of a page again."""
    (page.parent / CHART).write_text(draw_chart(page.read_text()))


def draw_chart(page: str) -> str:
    """The chart: CPU a rollout, and rollouts a second of a slow model by those in flight."""
    rows = list(read_rows(page))
    cpu = [Bar(row["name"], number(row["CPU ms"]), row["CPU ms"]) for row in rows if is_fast(row)]
    cpu.sort(key=lambda bar: bar.value)
    rates: dict[str, dict[float, float]] = {}
    for row in rows:
        if not is_fast(row):
            at = number(row["in flight"])
            rates.setdefault(row["name"], {})[at] = number(row["rollouts/s"])
    height = TOP + ROW * len(cpu) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + TOP + PLOT + 56}"'
        f' role="img" aria-label="rollout_kit and other collectors">',
        f"<style>{STYLE}</style>",
        '<rect class="ground" width="100%" height="100%" rx="6"/>',
        *draw_panel("CPU a rollout, in milliseconds: less is better", cpu, 0),
        *draw_lines("Rollouts a second of a model that takes 1 s: more is better", rates, height),
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def is_fast(row: dict[str, str]) -> bool:
    """Whether the model of a row answers at once."""
    return row["latency"] == "0"


def number(text: str) -> float:
    return float(text.replace(",", ""))


def read_rows(page: str) -> Iterator[dict[str, str]]:
    """The rows of the table of collectors, each by the titles of its columns."""
    lines = page.partition(TABLE)[2].partition("\n<!--")[0].splitlines()
    cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines if "|" in line]
    titles, _, *rows = cells
    for row in rows:
        yield dict(zip(["name", *titles[1:]], row, strict=True))


def draw_panel(title: str, bars: Sequence[Bar], top: int) -> Iterator[str]:
    """A title and horizontal bars that begin at 0."""
    yield f'<text class="title" x="16" y="{top + 28}">{escape(title)}</text>'
    longest = max(bar.value for bar in bars)
    room = WIDTH - NAMES - FIGURES
    for row, bar in enumerate(bars):
        y = top + TOP + row * ROW
        kind = "ours" if bar.name == OURS else "bar"
        width = max(1.0, room * bar.value / longest)
        weight = BOLD if bar.name == OURS else ""
        place = f'x="{NAMES - 10}" y="{y + 14}" text-anchor="end"{weight}'
        yield f"<text {place}>{escape(bar.name)}</text>"
        yield f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{width:.1f}" height="18" rx="2"/>'
        yield f'<text x="{NAMES + width + 6:.1f}" y="{y + 14}"{weight}>{bar.text}</text>'


def draw_lines(title: str, rates: dict[str, dict[float, float]], top: int) -> Iterator[str]:
    """A title, and a line for each collector: rollouts a second by rollouts in flight, which are
    spaced as powers of two."""
    yield f'<text class="title" x="16" y="{top + 28}">{escape(title)}</text>'
    places = sorted({at for line in rates.values() for at in line})
    step = (WIDTH - LEFT - RIGHT) / log2(places[-1] / places[0])
    xs = {at: LEFT + step * log2(at / places[0]) for at in places}
    most, bottom = max(rate for line in rates.values() for rate in line.values()), top + TOP + PLOT

    def height_of(rate: float) -> float:
        return bottom - (PLOT - LABEL) * rate / most

    power = 10 ** floor(log10(most))
    tick = max(step for step in (power / 2, power, 2 * power, 4 * power) if 2 * step <= most)
    for rate in range(0, int(most) + 1, int(tick)):
        y = height_of(rate)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:,.0f}</text>'
    for at, x in xs.items():
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{at:,.0f}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{bottom + 40}" text-anchor="middle">rollouts in flight</text>'
    free, drawn = bottom + LABEL, list[str]()
    for name, line in sorted(rates.items(), key=lambda each: each[1][places[-1]]):
        points = " L".join(f"{xs[at]:.1f} {height_of(line[at]):.1f}" for at in sorted(line))
        kind, weight = ("line ours", BOLD) if name == OURS else ("line", "")
        drawn.append(f'<path class="{kind}" d="M{points}"/>')
        free = min(free - LABEL, height_of(line[places[-1]]) + 4)
        said = f"{line[places[-1]]:,.0f}  {name}"
        yield f'<text x="{WIDTH - RIGHT + 8}" y="{free:.1f}"{weight}>{escape(said)}</text>'
    yield from sorted(drawn, key=lambda path: "ours" in path)  # the last one is on top


if __name__ == "__main__":
    write_chart(Path("docs/performance.md"))
