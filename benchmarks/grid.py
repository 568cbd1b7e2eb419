"""The grid: the same work with the bare loop and with rollout_kit, as ratios."""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rollout_kit.serving.process_tree import family

from . import sides, work
from .endpoint import Setting
from .measure import Measured, Unmeasured, cpu_s, measure, memory_mb

EXPECTED_REWARD = {"short": 0.25, "long": 0.25, "tools": 1.0, "turns": 1.0}
"""Expected mean reward; another one means that the work was not done."""

LEAST_BARE = {"short": 6_000, "long": 600, "tools": 1_200, "turns": 0}
"""Rows that take the bare loop about a second."""


@dataclass(frozen=True, slots=True)
class Case:
    """One cell: `kind` is the work (short, long, tools, turns-40), `placement` where the servers
    run. Long conversations are compared with a loop that uses orjson: encoding is most of it."""

    kind: str
    placement: str
    parallel: int
    rows: int
    latency_s: float = 0.0
    when: str = "usual"
    """`quick`: also part of --quick · `full`: only part of --full."""
    repeats: int = 1
    """How many runs it takes in place of one: those of two seconds vary most."""

    @property
    def bare_rows(self) -> int:
        """Rows of the bare loop: more than for rollout_kit if it would finish too soon."""
        return self.rows if self.latency_s else max(self.rows, LEAST_BARE[self.work])

    @property
    def work(self) -> str:
        return self.kind.partition("-")[0]

    @property
    def name(self) -> str:
        if self.work == "turns":
            return f"{self.placement}-{self.kind}"
        latency = f"-{self.latency_s:g}s" if self.latency_s else ""
        return f"{self.placement}-{self.kind}{latency}-{self.parallel}"


@dataclass(frozen=True, slots=True)
class Side:
    """Cost of one side for a case. The rate covers the time of requests; CPU counts from the first
    request."""

    per_s: float
    cpu_ms: float
    peak_mb: float
    lag_p99_ms: float
    lag_max_ms: float
    mean_in_flight: float
    max_in_flight: int
    wall_s: float
    servers_cpu_ms: float = 0.0
    servers_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    case: Case
    bare: Side
    ours: Side
    runs: dict[str, list[Side]]

    @property
    def rate_ratio(self) -> float:
        return self._ratio(lambda side: side.per_s)

    @property
    def cpu_ratio(self) -> float:
        return self._ratio(lambda side: side.cpu_ms)

    @property
    def whole_cpu_ratio(self) -> float:
        """That of all processes: the client and the servers or hops behind it."""
        return self._ratio(lambda side: side.cpu_ms + side.servers_cpu_ms)

    def _ratio(self, of: Callable[[Side], float]) -> float:
        """Median ratio of adjacent runs, because the load of the machine varies."""
        pairs = zip(self.runs["ours"], self.runs["bare"], strict=True)
        return statistics.median(of(ours) / of(bare) for ours, bare in pairs)

    def as_json(self) -> dict[str, object]:
        ratios = {"rate_ratio": self.rate_ratio, "cpu_ratio": self.cpu_ratio}
        ratios["whole_cpu_ratio"] = self.whole_cpu_ratio
        return {"name": self.case.name, **asdict(self), **ratios}


OFTEN = 5
"""Repeats of the cases whose ratio varies most."""

CASES = [
    Case("short", "local", 1, 1_500),
    Case("short", "local", 16, 6_000, repeats=OFTEN),
    Case("short", "local", 128, 6_000, when="quick", repeats=OFTEN),
    Case("short", "local", 1_024, 8_192, repeats=OFTEN),
    Case("short", "local", 4_096, 16_384),
    *(Case("long", "local", 16, 600), Case("long", "local", 128, 600, when="quick")),
    Case("long", "local", 1_024, 2_048),
    *(Case("tools", "local", 1, 300, when="full"), Case("tools", "local", 16, 1_200)),
    *(Case("tools", "local", 128, 1_200, when="quick"), Case("tools", "local", 1_024, 2_048)),
    *(Case("short", "process", 1, 300), Case("short", "process", 16, 1_500, when="full")),
    Case("short", "process", 64, 1_500, when="quick"),
    *(Case("short", "process", 128, 1_500, when="full"), Case("short", "process", 1_024, 2_048)),
    *(Case("short", "process", 4_096, 8_192, when="full"), Case("long", "process", 64, 300)),
    *(
        Case("tools", "process", 1, 100, when="full"),
        Case("tools", "process", 64, 500, when="quick"),
    ),
    Case("tools", "process", 1_024, 1_024, when="full"),
    *(Case("short", "local", 16, 64, 1.0, when="full"), Case("short", "local", 128, 1_024, 1.0)),
    Case("short", "local", 1_024, 8_192, 1.0, when="quick"),
    Case("short", "local", 4_096, 16_384, 4.0),
    Case("tools", "local", 1_024, 2_048, 1.0, when="full"),
    Case("short", "process", 1_024, 4_096, 1.0, when="full"),
    *(Case("turns-40", "local", 16, 40, when="quick"), Case("turns-160", "local", 16, 40)),
    Case("turns-320", "local", 16, 40),
    *(Case("turns-40", "process", 16, 40), Case("turns-160", "process", 16, 40)),
    Case("turns-320", "process", 16, 40),
]


class Grid:
    """Runs cases against one endpoint."""

    def __init__(self, port: int, folder: Path, runs: int, say: Callable[[str], None]) -> None:
        self.port = port
        self.folder = folder
        self.runs = runs
        self.say = say
        self.failed: list[str] = []

    def compare(self, cases: Sequence[Case]) -> Iterator[Compared]:
        """Run the cases and yield each; cases with the same servers share an ng_run."""
        groups = dict.fromkeys((case.placement, case.kind) for case in cases)
        for placement, kind in groups:
            with ExitStack() as stack:
                servers = None
                if placement == "process":
                    servers = stack.enter_context(sides.ng_run(self.port, kind, self.folder))
                for case in cases:
                    if (case.placement, case.kind) != (placement, kind):
                        continue
                    try:
                        yield self._case(case, servers)
                    except Unmeasured as error:
                        self.failed.append(f"{case.name}: {error}")

    def _case(self, case: Case, servers: sides.Servers | None) -> Compared:
        rows_of = {"bare": case.bare_rows, "ours": case.rows}
        rows = {
            label: work.write_rows(self.folder / f"{label}.jsonl", rows_of[label], case.kind)
            for label in rows_of
        }
        found: dict[str, list[Side]] = {"bare": [], "ours": []}
        for number in range(self.runs * case.repeats):
            for label in ("bare", "ours") if number % 2 == 0 else ("ours", "bare"):
                with ExitStack() as stack:
                    argv, pids = self._argv(label, case, rows[label], servers, stack)
                    before_s = sum(map(cpu_s, pids))
                    run = self._run(label, case, argv)
                    servers_s = sum(map(cpu_s, pids)) - before_s
                    side = _side(rows_of[label], run, servers_s, sum(map(memory_mb, pids)))
                found[label].append(side)
        compared = Compared(case, median(found["bare"]), median(found["ours"]), found)
        self.say(row_of_text(compared))
        return compared

    def _argv(
        self, label: str, case: Case, rows: Path, servers: sides.Servers | None, stack: ExitStack
    ) -> tuple[list[str], list[int]]:
        """A command, and the processes whose CPU counts besides its own."""
        if label == "ours" and servers:
            return sides.through(servers, rows, case.parallel), family(servers.pid)
        if label == "ours":
            return sides.local(self.port, case.kind, rows, case.parallel), []
        if case.work != "turns":
            return sides.bare(self.port, rows, case.parallel), []
        if not servers:
            return sides.bare(self.port, rows, case.parallel, "--json", "orjson"), []
        model, tools = (stack.enter_context(sides.hop(self.port)) for _ in range(2))
        more = ("--json", "orjson", "--tools", f"http://127.0.0.1:{tools[0]}")
        return sides.bare(model[0], rows, case.parallel, *more), [model[1], tools[1]]

    def _run(self, label: str, case: Case, argv: list[str]) -> Measured:
        setting = Setting(case.kind, case.latency_s, case.parallel)
        run = measure(argv, self.folder, self.port, setting)
        if label == "ours":
            self._check(case, argv, run)
        return run

    def _check(self, case: Case, argv: Sequence[str], run: Measured) -> None:
        """Check that the work was done: all rows, all turns, and the expected reward."""
        output = next(word for word in argv if word.startswith("+output_jsonl_fpath="))
        stem = self.folder / output.partition("=")[2].removesuffix(".jsonl")
        told = json.loads(stem.with_name(f"{stem.name}_aggregate_metrics.json").read_text())
        written = stem.with_suffix(".jsonl")
        with written.open("rb") as stream:
            lines = sum(1 for _ in stream)
        turns = work.num_turns(case.kind)
        written.unlink()
        reward = told["metrics"]["reward"]
        is_off = abs(reward - EXPECTED_REWARD[case.work]) > 0.01
        if lines != case.rows or run.seen.requests != lines * turns or is_off:
            raise Unmeasured(f"{lines} rollouts, mean reward {reward}, {run.seen}")


def _side(number: int, run: Measured, servers_s: float, servers_mb: float) -> Side:
    per_row_ms = 1e3 / number
    return Side(
        per_s=number / run.span_s,
        cpu_ms=run.flow_cpu_s * per_row_ms,
        peak_mb=run.peak_mb,
        lag_p99_ms=run.lag_p99_ms,
        lag_max_ms=run.lag_max_ms,
        mean_in_flight=run.seen.mean_in_flight,
        max_in_flight=run.seen.max_in_flight,
        wall_s=run.wall_s,
        servers_cpu_ms=servers_s * per_row_ms,
        servers_mb=servers_mb,
    )


def median(found: Sequence[Side]) -> Side:
    """Median of each figure; for figures with an upper limit, the maximum."""
    names = asdict(found[0])
    middle = {name: statistics.median(getattr(side, name) for side in found) for name in names}
    return Side(**{**middle, "max_in_flight": max(side.max_in_flight for side in found)})


def row_of_text(compared: Compared) -> str:
    case, bare, ours = compared.case, compared.bare, compared.ours
    both = bare.servers_cpu_ms and ours.servers_cpu_ms
    return (
        f"{case.name:<24} {bare.per_s:>8.0f} {ours.per_s:>8.0f} {compared.rate_ratio:>6.2f}"
        f" {bare.cpu_ms:>8.3f} {ours.cpu_ms:>8.3f} {compared.cpu_ratio:>6.2f}"
        f" {bare.peak_mb:>7.0f} {ours.peak_mb:>7.0f}"
        f" {bare.lag_p99_ms:>7.1f} {ours.lag_p99_ms:>7.1f}"
        f"{f'  all processes: {compared.whole_cpu_ratio:.2f}' if both else ''}"
    )


HEAD = (
    f"{'':<24} {'rollouts/s':>17} {'':>6} {'CPU ms/rollout':>17} {'':>6}"
    f" {'peak MB':>15} {'lag p99 ms':>15}\n"
    f"{'case':<24} {'bare':>8} {'ours':>8} {'ratio':>6} {'bare':>8} {'ours':>8} {'ratio':>6}"
    f" {'bare':>7} {'ours':>7} {'bare':>7} {'ours':>7}"
)
