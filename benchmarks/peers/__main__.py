"""The same single-turn work with other collectors, rollout_kit and the bare loop.

    python -m benchmarks.peers [--runs 3] [--only inspect rollout_kit] [--quick]

Each tool is installed once, at a pinned version, into its own environment (--cache). CPU and memory
include all child processes.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import endpoint, report, work
from ..endpoint import Setting
from ..measure import Unmeasured, running_endpoint
from ..raised import raise_file_limit
from .tools import FAST, TASKS, TOOLS, Job, Tool
from .tree import Took, took

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rollout_kit_bench"
CASES = [(16, 0.0), (128, 0.0), (512, 0.0), (1_024, 0.0), (128, 1.0), (512, 1.0), (1_024, 1.0)]
"""In flight, latency in seconds."""

QUICK = [(128, 0.0), (64, 1.0), (256, 1.0), (1_024, 1.0)]
"""What the chart shows."""

FAST_ROWS, SLOW_ROWS = (4_000, 4_096, 8), (400, 1_024, 4)
"""Of a fast and of a slow tool: rows without latency, the most rows with latency, and rows with
latency for each rollout in flight. A slow tool takes ten seconds for its rows."""

AT_MOST_S = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of a tool for one case; the CPU of a run with one row is subtracted."""

    tool: str
    parallel: int
    latency_s: float
    rows: int
    per_s: float
    """Rate during the time of requests."""
    overall_per_s: float
    """Rate including start and end."""
    cpu_ms: float
    peak_mb: float
    max_in_flight: int
    start_up_s: float
    """Duration of a run with one row."""


class Bench:
    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self.folder = folder
        shutil.copytree(TASKS, folder / "tasks")

    def once(
        self, tool: Tool, programs: Path, number: int, parallel: int, latency_s: float
    ) -> tuple[Took, endpoint.Stats]:
        rows = work.write_rows(self.folder / "rows.jsonl", number)
        job = Job(self.port, rows, number, parallel, self.folder / "out")
        endpoint.configure(self.port, Setting(latency_s=latency_s, limit=parallel))
        argv = tool.command(job, programs)
        run = took(argv, self.folder, tool.environment(job), at_most_s=AT_MOST_S)
        seen = endpoint.stats(self.port)
        shutil.rmtree(job.out, ignore_errors=True)
        if seen.requests < number:
            raise Unmeasured(f"{seen.requests} requests for {number} rows")
        return run, seen

    def compare(
        self, tools: list[Tool], cases: list[tuple[int, float]], runs: int
    ) -> Iterator[list[Result]]:
        """Run the cases, each with every tool that is installed."""
        programs: dict[str, Path] = {}
        ones: dict[str, list[Took]] = {}
        for tool in tools:
            try:
                programs[tool.name] = tool.install(CACHE)
                for _ in range(min(runs, 2) + 1):  # the first fills caches
                    one, _ = self.once(tool, programs[tool.name], 1, 16, 0.0)
                    ones.setdefault(tool.name, []).append(one)
            except (subprocess.CalledProcessError, Unmeasured) as error:
                print(f"{tool.name} is left out: {error}", flush=True)
        tools = [tool for tool in tools if tool.name in ones]
        for parallel, latency_s in cases:
            found: dict[str, list[Result]] = {}
            for tool in tools * runs:
                number = count_rows(tool, parallel, latency_s)
                try:
                    run = self.once(tool, programs[tool.name], number, parallel, latency_s)
                except Unmeasured as error:
                    print(f"{tool.name}, {parallel} in flight: {error}", flush=True)
                    continue
                result = _result(tool, parallel, latency_s, number, run, ones[tool.name])
                found.setdefault(tool.name, []).append(result)
            yield [_median(each) for each in found.values()]


def count_rows(tool: Tool, parallel: int, latency_s: float) -> int:
    without, most, each = FAST_ROWS if tool.name in FAST else SLOW_ROWS
    return min(most, each * parallel) if latency_s else without


def _result(
    tool: Tool,
    parallel: int,
    latency_s: float,
    number: int,
    run: tuple[Took, endpoint.Stats],
    ones: list[Took],
) -> Result:
    whole, seen = run
    return Result(
        tool=tool.name,
        parallel=parallel,
        latency_s=latency_s,
        rows=number,
        per_s=number / (seen.last_s - seen.first_s),
        overall_per_s=number / whole.wall_s,
        cpu_ms=(whole.cpu_s - min(one.cpu_s for one in ones)) / (number - 1) * 1e3,
        peak_mb=whole.peak_mb,
        max_in_flight=seen.max_in_flight,
        start_up_s=min(one.wall_s for one in ones),
    )


def _median(found: list[Result]) -> Result:
    numbers = {
        name: statistics.median(getattr(each, name) for each in found)
        for name in ("per_s", "overall_per_s", "cpu_ms", "peak_mb", "max_in_flight")
    }
    return Result(**{**asdict(found[0]), **numbers})


HEAD = (
    f"{'':<36}{'latency':>8}{'in flight':>10}{'rollouts/s':>11}{'overall':>9}{'CPU ms':>9}"
    f"{'peak MB':>9}{'most':>7}{'one row':>9}"
)


def _row(each: Result) -> str:
    return (
        f"{each.tool:<36}{each.latency_s:>8g}{each.parallel:>10}{each.per_s:>11.0f}"
        f"{each.overall_per_s:>9.0f}{each.cpu_ms:>9.2f}{each.peak_mb:>9.0f}"
        f"{each.max_in_flight:>7.0f}{each.start_up_s:>9.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, help="each case so often (3; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="the cases of the chart, one run each")
    parser.add_argument("--only", nargs="+", metavar="TOOL", help="tools by the start of a name")
    args = parser.parse_args()
    tools = [tool for tool in TOOLS if tool.name.startswith(tuple(args.only or [""]))]
    runs = args.runs or (1 if args.quick else 3)
    cases = QUICK if args.quick else CASES
    raise_file_limit()
    with tempfile.TemporaryDirectory() as name, running_endpoint() as port:
        print(HEAD)
        results = []
        with suppress(KeyboardInterrupt):  # what there is by then is kept
            for found in Bench(port, Path(name)).compare(tools, cases, runs):
                results += found
                print(*map(_row, found), sep="\n", flush=True)
    (fast, fast_most, many), (slow, slow_most, few) = FAST_ROWS, SLOW_ROWS
    rows = (
        f"One turn, multiple choice: {fast:,} rows without latency. With latency there are {many}"
        f" rows for each in flight, at most {fast_most:,}. For inspect and verifiers there are"
        f" {slow:,} rows, or {few} for each in flight, at most {slow_most:,}."
    )
    content = {"runs": runs, "rows": rows, "cases": [asdict(each) for each in results]}
    print(report.write(report.PEERS, content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
