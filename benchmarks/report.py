"""Write results as JSON, as text, and as the tables of docs/performance.md."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .chart import write_chart
from .figures import Figure
from .grid import OFTEN, Compared
from .lines import Line, judge
from .measure import ROOT

RESULTS = ROOT / "results/bench"
PEERS = ROOT / "results/bench_peers"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
KINDS = {
    "short": "one turn",
    "long": "one turn, 200 KB",
    "tools": "five turns with tools",
    **{f"turns-{number}": f"{number} turns of 1.5 KB" for number in (40, 160, 320)},
}
PLACES = {"local": "in the collector", "process": "3 processes"}

Json = dict[str, Any]


@dataclass(slots=True)
class Found:
    """All measurements of one run of the benchmark."""

    compared: list[Compared] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    load: float = 0.0
    """Load of the machine before the run."""

    def lines(self) -> list[Line]:
        return judge(self.compared, self.figures)

    def write(self, runs: int) -> Path:
        return write(
            RESULTS,
            {
                "runs": runs,
                "load": self.load,
                "cases": [each.as_json() for each in self.compared],
                "figures": [asdict(each) for each in self.figures],
                "lines": [
                    {**asdict(each), "asked": each.asked, "shown": each.shown, "held": each.held}
                    for each in self.lines()
                ],
                "failed": self.failed,
            },
        )


def write(folder: Path, content: Json) -> Path:
    """Write `content`, with date and machine, to a new file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}.json"
    path.write_text(json.dumps({**circumstances(), **content}, indent=1) + "\n")
    return path


def circumstances() -> Json:
    """Describe date and machine in general terms."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "argv": sys.argv[1:],
    }


def text_of_lines(lines: Iterable[Line]) -> str:
    return "\n".join(
        f"{line.verdict:<13}{line.what:<68}{line.shown:>20}   asked: {line.asked}"
        for line in lines
        if line.held is not None
    )


def newest(folder: Path) -> Json | None:
    found = sorted(folder.glob("*.json"))
    return json.loads(found[-1].read_text()) if found else None


def renew(page: Path) -> None:
    """Insert the tables of the newest results between the marks of the page."""
    ours, peers = newest(RESULTS), newest(PEERS)
    if ours is None:
        sys.exit(f"no results in {RESULTS}: run  python -m benchmarks  first")
    head, _, rest = page.read_text().partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        sys.exit(f"{page}: has no {BEGIN} … {END}")
    text = "\n".join([*_markdown(ours), *(_markdown_of_peers(peers) if peers else [])])
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
    if peers:
        write_chart(page)


def _markdown(found: Json) -> Iterator[str]:
    yield (
        f"{_where(found)} {of_cases(found['runs'])}. Measured with rollout_kit at"
        f" {found['commit']}. Load of the machine before: {found['load']:.1f}.\n"
    )
    yield "## Targets\n"
    yield from _table(
        ("", "target", "figure", ""),
        [
            (line["what"], line["asked"], line["shown"], "held" if line["held"] else "**not held**")
            for line in found["lines"]
            if line["held"] is not None
        ],
    )
    yield "\n## Compared with the bare loop\n"
    yield from _table(
        (
            *("work", "servers", "latency", "in flight", "rollouts/s", "of bare", "CPU ms"),
            *("× bare", "servers' CPU ms", "peak MB (bare)", "loop lag p99 ms (bare)"),
        ),
        map(_row_of_case, found["cases"]),
    )
    yield "\n## Starting, continuing, long inputs\n"
    yield from _table(
        ("", "figure"),
        [(each["what"], f"{each['value']:,.3g} {each['unit']}") for each in found["figures"]],
    )


def _row_of_case(each: Json) -> tuple[str, ...]:
    case, ours, bare = each["case"], each["ours"], each["bare"]
    servers_ms = ours["servers_cpu_ms"]
    return (
        KINDS[case["kind"]],
        PLACES[case["placement"]],
        f"{case['latency_s']:g} s" if case["latency_s"] else "0",
        f"{case['parallel']:,}",
        f"{ours['per_s']:,.0f}",
        f"{each['rate_ratio']:.0%}",
        f"{ours['cpu_ms']:.2f}",
        f"{each['cpu_ratio']:.1f}",
        f"{servers_ms:.2f}" if servers_ms else "–",
        f"{ours['peak_mb']:.0f} ({bare['peak_mb']:.0f})",
        f"{ours['lag_p99_ms']:.0f} ({bare['lag_p99_ms']:.0f})",
    )


def _markdown_of_peers(found: Json) -> Iterator[str]:
    yield "\n## Compared with other collectors\n"
    yield f"{_where(found)} {found['rows']} {_of(found['runs'])}."
    yield "Compare these rows only with each other,"
    yield "because the tables above are from another run.\n"
    yield from _table(
        (
            *("", "latency", "in flight", "rollouts/s", "with start and end"),
            *("CPU ms", "peak MB", "most in flight", "one row takes"),
        ),
        [
            (
                each["tool"],
                f"{each['latency_s']:g} s" if each["latency_s"] else "0",
                f"{each['parallel']:,}",
                f"{each['per_s']:,.0f}",
                f"{each['overall_per_s']:,.0f}",
                f"{each['cpu_ms']:.2f}",
                f"{each['peak_mb']:,.0f}",
                f"{each['max_in_flight']:,}" if each["latency_s"] else "–",
                f"{each['start_up_s']:.1f} s",
            )
            for each in found["cases"]
        ],
    )


def _of(runs: int) -> str:
    return "One run of each" if runs == 1 else f"Medians of {runs}"


def of_cases(runs: int) -> str:
    """How often the cases of the grid were measured."""
    return f"{_of(runs)} ({OFTEN * runs} of the shortest cases)"


def _where(found: Json) -> str:
    return f"Measured {found['date']} on {found['machine']} (shared), Python {found['python']}."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
