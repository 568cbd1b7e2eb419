"""Draws the chart of the README from a table of docs/performance.md, as SVG.

python -m benchmarks.chart    # after a change of the table
"""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

CHART = "images/collectors.svg"
"""The file, in the folder of the page."""

TABLE = "## Compared with other collectors"

OURS = "rollout_kit"

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px }
.bar { fill: #9aa4b2 }
.ours { fill: #3f51b5 }
.ground { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .bar { fill: #6b7686 }
  .ours { fill: #8c9eff }
  .ground { fill: #0d1117 }
}
"""

WIDTH, ROW, TOP, NAMES, FIGURES = 640, 26, 44, 250, 80
"""Width of a panel, height of a bar with its gap, of the title, and room for names and figures."""


class Bar(NamedTuple):
    """A collector and its figure."""

    name: str
    value: float
    text: str


def write_chart(page: Path) -> None:
    """Draw the chart of a page again."""
    (page.parent / CHART).write_text(draw_chart(page.read_text()))


def draw_chart(page: str) -> str:
    """The chart: CPU a rollout, and rollouts a second of a slow model."""
    rows = list(read_rows(page))
    cpu = [Bar(row["name"], number(row["CPU ms"]), row["CPU ms"]) for row in rows if is_fast(row)]
    rate = [
        Bar(row["name"], number(row["rollouts/s"]), row["rollouts/s"])
        for row in rows
        if not is_fast(row)
    ]
    cpu.sort(key=lambda bar: bar.value)
    rate.sort(key=lambda bar: -bar.value)
    panels = [
        ("CPU a rollout, in milliseconds: less is better", cpu),
        ("Rollouts a second, a model that takes 1 s, 512 in flight: more is better", rate),
    ]
    height = TOP + ROW * len(cpu) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * height}"'
        f' role="img" aria-label="rollout_kit and other collectors">',
        f"<style>{STYLE}</style>",
        '<rect class="ground" width="100%" height="100%" rx="6"/>',
    ]
    for place, (title, bars) in enumerate(panels):
        lines += draw_panel(title, bars, place * height)
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
        weight = ' font-weight="600"' if bar.name == OURS else ""
        place = f'x="{NAMES - 10}" y="{y + 14}" text-anchor="end"{weight}'
        yield f"<text {place}>{escape(bar.name)}</text>"
        yield f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{width:.1f}" height="18" rx="2"/>'
        yield f'<text x="{NAMES + width + 6:.1f}" y="{y + 14}"{weight}>{bar.text}</text>'


if __name__ == "__main__":
    write_chart(Path("docs/performance.md"))
