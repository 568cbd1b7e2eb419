"""Single figures: start, import, long inputs, continuing, final metrics, journal."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rollout_kit.store.files import OutputPaths

from . import endpoint, sides, work
from .endpoint import Setting
from .groups import measure_groups
from .measure import Unmeasured, cpu_s, environment, measure
from .probe import peak_mb
from .viewer import measure_viewer

MILLION = 1_000_000
MANY = 125_000
"""Tasks to collect; an eighth of a million, so that hash tables are as full as with a million."""

FEW = 1_000
GIVEN_UP_S = 180.0
"""Time limit for the first request."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit; `name` identifies it in the list of targets."""

    name: str
    what: str
    value: float
    unit: str


@dataclass(slots=True)
class Figures:
    """Measures single figures against one endpoint."""

    port: int
    folder: Path
    runs: int
    say: Callable[[str], None]
    failed: list[str] = field(default_factory=list)

    def measure(self, names: Sequence[str]) -> Iterator[Figure]:
        """Measure the groups in `names`, and yield each figure when it is done."""
        for name in names:
            try:
                for figure in GROUPS[name](self):
                    self.say(f"{figure.what:<72} {figure.value:>10,.4g} {figure.unit}")
                    yield figure
            except Unmeasured as error:
                self.failed.append(f"{name}: {error}")

    def start(self) -> Iterator[Figure]:
        bare = [sys.executable, "-c", "pass"]
        yield Figure("python_s", "python, nothing imported", self._took(bare), "s")
        argv = [sys.executable, "-c", "import rollout_kit"]
        yield Figure("import_s", "import rollout_kit", self._took(argv), "s")
        code = "from rollout_kit.commands import main; main('ng_collect_rollouts')"
        help_s = self._took([sys.executable, "-c", code, "--help"])
        yield Figure("help_s", "ng_collect_rollouts --help", help_s, "s")
        one = work.write_rows(self.folder / "one.jsonl", 1)
        local = statistics.median(
            self._first_request_s(sides.local(self.port, "short", one, 1)) for _ in range(self.runs)
        )
        yield Figure("first_request_s", "ng_collect_rollouts to its first request", local, "s")
        ready, through = [], []
        for _ in range(self.runs):
            with sides.ng_run(self.port, "short", self.folder) as servers:
                ready.append(servers.ready_s)
                through.append(self._first_request_s(sides.through(servers, one, 1)))
        yield Figure("ng_run_s", "ng_run to all servers ready", statistics.median(ready), "s")
        what = "ng_collect_rollouts to its first request, servers up"
        yield Figure("first_request_through_s", what, statistics.median(through), "s")

    def long_input(self) -> Iterator[Figure]:
        """Read a million rows: time until all are read and counted."""
        rows = work.write_rows(self.folder / "million.jsonl", MILLION)
        argv = sides.local(self.port, "short", rows, 16)
        # answers that take a while keep the run going without adding finished tasks
        with self._left_early(argv, Setting(latency_s=5.0)) as (process, said, began):
            first_s = self._wait_for_request(process) - began
            self._wait_for_plan(process, said, MILLION)
            time.sleep(0.5)
            peak = peak_mb(process.pid)
        rows.unlink()
        yield Figure("million_first_s", "1,000,000-row input: first request", first_s, "s")
        yield Figure("million_peak_mb", "… peak when all rows are read", peak, "MB")
        each = (peak - self._collected(1)[0]) * 2**20 / MILLION
        yield Figure("input_bytes_per_task", "… of it, a task that was read", each, "bytes")

    def many(self) -> Iterator[Figure]:
        """Collect an eighth of a million tasks: memory per task, and duration of the end."""
        few = self._collected(FEW)
        many = self._collected(MANY)
        each = (many[0] - few[0]) * 2**20 / (MANY - FEW)
        what = f"memory kept a finished task ({MANY:,} against {FEW:,})"
        yield Figure("bytes_per_task", what, each, "bytes")
        scaled = few[0] + each * MILLION / 2**20
        yield Figure("million_end_mb", "… scaled to 1,000,000 finished tasks: peak", scaled, "MB")
        end_s = (many[1] - few[1]) / (MANY - FEW) * 1e3
        what = f"final metrics and exit, per 1,000 rollouts (of {MANY:,})"
        yield Figure("final_s_per_1000", what, end_s, "s")

    def million(self) -> Iterator[Figure]:
        """Collect the full million."""
        few = self._collected(FEW)
        found = self._collected(MILLION)
        each = (found[0] - few[0]) * 2**20 / (MILLION - FEW)
        yield Figure("bytes_per_task", "memory kept a finished task of 1,000,000", each, "bytes")
        what = "1,000,000 finished tasks: peak"
        yield Figure("million_end_mb", what, found[0], "MB")
        end_s = (found[1] - few[1]) / (MILLION - FEW) * 1e3
        what = "final metrics and exit, per 1,000 rollouts (of 1,000,000)"
        yield Figure("final_s_per_1000", what, end_s, "s")
        yield Figure("million_per_s", "1,000,000 rollouts: a second", found[2], "1/s")

    def resume(self) -> Iterator[Figure]:
        """Continue behind a million finished rollouts with one new one."""
        output = self.folder / "resumed/rollouts.jsonl"
        _finish(self, output, MILLION)
        rows = work.write_rows(self.folder / "million_and_one.jsonl", MILLION + 1)
        size_gb = output.stat().st_size / 1e9
        yield Figure("resume_file_gb", "continuing behind 1,000,000 rollouts: file", size_gb, "GB")
        argv = sides.local(self.port, "short", rows, 16, str(output))
        without_s, without_mb, _ = self._measure_continuation(argv, until_counted=True)
        index_gb = OutputPaths(output).index.stat().st_size / 1e9
        first_s, peak, used_s = self._measure_continuation(argv)
        output.unlink()
        rows.unlink()
        yield Figure("resume_first_s", "… first new request", first_s, "s")
        yield Figure("resume_cpu_s", "… CPU until then", used_s, "s")
        yield Figure("resume_peak_mb", "… peak until then", peak, "MB")
        what = "… without an index, which is made: first new request"
        yield Figure("resume_unindexed_s", what, without_s, "s")
        yield Figure("resume_unindexed_mb", "… without an index: peak until then", without_mb, "MB")
        what = "… time to the first request, with the index, of without"
        yield Figure("resume_ratio", what, first_s / without_s, "")
        yield Figure("resume_index_gb", "… index", index_gb, "GB")

    def viewer(self) -> Iterator[Figure]:
        """Look at a million rollouts of 3 KB."""
        for name, what, value, unit in measure_viewer(self.folder):
            yield Figure(name, what, value, unit)

    def journal(self) -> Iterator[Figure]:
        for kind, number in (("short", 50_000), ("long", 1_000)):
            argv = [sys.executable, "-m", "benchmarks.journal", kind, str(number)]
            runs = [subprocess.check_output(argv, env=environment()) for _ in range(self.runs)]
            ours = statistics.median(float(run.split()[0]) for run in runs)
            floor = statistics.median(float(run.split()[1]) for run in runs)
            size = "2 KB" if kind == "short" else "200 KB"
            yield Figure(f"journal_{kind}_per_s", f"journal, {size} responses", ours, "rows/s")
            what = f"… of dumping and writing the same lines, {size}"
            yield Figure(f"journal_{kind}_ratio", what, ours / floor, "")
            index_us = statistics.median(float(run.split()[2]) for run in runs)
            what = f"… of it, CPU of the index a rollout, {size}"
            yield Figure(f"journal_{kind}_index_us", what, index_us, "µs")

    def _measure_continuation(
        self, argv: Sequence[str], *, until_counted: bool = False
    ) -> tuple[float, float, float]:
        """Seconds to the first request of a run that is killed then, its peak in MB and its CPU
        seconds until then. `until_counted`: it is killed once it has read all of its input."""
        with self._left_early(argv, Setting(latency_s=60.0)) as (process, said, began):
            first_s = self._wait_for_request(process) - began
            found = first_s, peak_mb(process.pid), cpu_s(process.pid)
            if until_counted:
                self._wait_for_plan(process, said, MILLION + 1)
                time.sleep(2.0)  # the index is written once a second
        return found

    def _wait_for_plan(self, process: "subprocess.Popen[bytes]", said: Path, number: int) -> None:
        until = time.monotonic() + GIVEN_UP_S
        while f"Plan: {number:,} tasks".encode() not in said.read_bytes():
            if process.poll() is not None or time.monotonic() > until:
                raise Unmeasured(f"{number:,} rows were not counted: {said.read_text()}")
            time.sleep(0.1)

    def _took(self, argv: Sequence[str]) -> float:
        def once() -> float:
            began = time.monotonic()
            subprocess.run(argv, env=environment(), stdout=subprocess.DEVNULL, check=True)
            return time.monotonic() - began

        return statistics.median(once() for _ in range(max(self.runs, 3)))

    def _first_request_s(self, argv: Sequence[str]) -> float:
        return measure(argv, self.folder, self.port, Setting()).to_first_request_s

    def _collected(self, number: int) -> tuple[float, float, float]:
        """Return peak MB, seconds from the last answer to the exit, and rollouts per second."""
        rows = work.write_rows(self.folder / "some.jsonl", number)
        output = self.folder / f"some-{number}/rollouts.jsonl"
        argv = sides.local(self.port, "short", rows, 128, str(output))
        run = measure(argv, self.folder, self.port, Setting())
        output.unlink()
        return run.peak_mb, run.after_last_answer_s, number / run.span_s

    def _wait_for_request(self, process: "subprocess.Popen[bytes]") -> float:
        """Return the time of the first request; raise Unmeasured if there is none."""
        until = time.monotonic() + GIVEN_UP_S
        while time.monotonic() < until and process.poll() is None:
            if (seen := endpoint.stats(self.port)).requests:
                return seen.first_s
            time.sleep(0.05)
        raise Unmeasured(f"no request within {GIVEN_UP_S:.0f} s")

    def _left_early(self, argv: Sequence[str], setting: Setting) -> "_LeftEarly":
        endpoint.configure(self.port, setting)
        return _LeftEarly(argv, self.folder)


class _LeftEarly:
    """Start a run to observe, and kill it afterwards."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        self.said = folder / "said.txt"
        report = str(folder / "report.json")
        with self.said.open("wb") as said:
            self.began = time.monotonic()
            self.process = subprocess.Popen(
                [word.replace("{report}", report) for word in argv],
                cwd=folder,
                env=environment(),
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> "tuple[subprocess.Popen[bytes], Path, float]":
        return self.process, self.said, self.began

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def _finish(figures: Figures, output: Path, number: int) -> None:
    """Write an output with `number` finished rollouts, copied from one that is collected."""
    from rollout_kit.store.tasks import task_id_of

    rows = work.write_rows(figures.folder / "one.jsonl", 1)
    argv = sides.local(figures.port, "short", rows, 1, str(output))
    measure(argv, figures.folder, figures.port, Setting())
    line = orjson.loads(output.read_bytes())
    first = task_id_of(work.choice_row(0))
    assert line["rollout"]["task_id"] == first
    line["_ng_task_index"], line["expected_answer"] = "@INDEX@", "@EXPECTED@"
    pattern = orjson.dumps(line).replace(b'"@INDEX@"', b"@INDEX@")
    pattern = pattern.replace(first.encode(), b"@ID@").replace(b"Question 0:", b"Question @INDEX@:")
    with tempfile.NamedTemporaryFile(dir=output.parent, delete=False) as stream:
        for index in range(number):
            row = work.choice_row(index)
            filled = pattern.replace(b"@ID@", task_id_of(row).encode())
            filled = filled.replace(b"@INDEX@", str(index).encode())
            filled = filled.replace(b"@EXPECTED@", row["expected_answer"].encode())
            stream.write(filled + b"\n")
    os.replace(stream.name, output)
    os.sync()  # else every `fsync` of the runs waits for gigabytes


GROUPS: dict[str, Callable[[Figures], Iterator[Figure]]] = {
    "start": Figures.start,
    "long_input": Figures.long_input,
    "resume": Figures.resume,
    "many": Figures.many,
    "million": Figures.million,
    "journal": Figures.journal,
    "groups": measure_groups,
    "viewer": Figures.viewer,
}
BY_DEFAULT = ("start", "long_input", "resume", "many", "journal", "groups")
QUICK = ("start", "journal")
