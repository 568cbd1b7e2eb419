"""The benchmark's own arithmetic, and a tiny run of it."""

import json
import re
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from benchmarks import report, vllm_job
from benchmarks.chart import CHART, draw_chart
from benchmarks.endpoint import mean_in_flight
from benchmarks.figures import Figure
from benchmarks.grid import Case, Compared, Grid, Side, median
from benchmarks.lines import judge
from benchmarks.measure import ROOT, cpu_at, lags_ms, running_endpoint


def side(per_s: float, cpu_ms: float, mean: float = 0.0, most: int = 0) -> Side:
    return Side(per_s, cpu_ms, 50.0, 1.0, 2.0, mean, most, 1.0)


def compared(case: Case, bare: list[Side], ours: list[Side]) -> Compared:
    return Compared(case, median(bare), median(ours), {"bare": bare, "ours": ours})


def test_a_ratio_is_the_median_of_pairs_that_ran_beside_each_other() -> None:
    bare = [side(1_000, 0.1), side(4_000, 0.2), side(2_000, 0.3)]
    ours = [side(500, 0.2), side(2_000, 0.4), side(200, 3.0)]
    found = compared(Case("short", "local", 128, 10), bare, ours)
    assert (found.rate_ratio, found.cpu_ratio) == (0.5, 2.0)
    assert found.ours.per_s == 500


def test_lines_say_held_not_held_and_not_measured() -> None:
    case = Case("short", "local", 1_024, 8_192, 1.0)
    full = compared(case, [side(1_000, 0.1)], [side(960, 0.2, mean=1_000, most=1_025)])
    lines = {line.what: line for line in judge([full], [Figure("resume_first_s", "", 30, "s")])}
    said = {what: line.verdict for what, line in lines.items()}
    assert said["1 s latency, 1,024 in flight: rate"] == "held"
    assert said["1 s latency, 1,024 in flight: mean in flight"] == "held"
    assert said["1 s latency, 1,024 in flight: most in flight"] == "NOT HELD"
    assert said["continuing behind 1,000,000: first new request"] == "NOT HELD"
    assert said["4 s latency, 4,096 in flight: rate"] == "not measured"
    assert lines["1 s latency, 1,024 in flight: rate"].shown == "0.96 of bare"


def test_most_in_flight_is_the_highest_of_all_runs() -> None:
    assert (
        median([side(1, 1, most=16), side(1, 1, most=17), side(1, 1, most=16)]).max_in_flight == 17
    )


def test_mean_in_flight_is_taken_from_the_full_limit_to_the_last_request() -> None:
    # two in flight from 1 on; from 3 to 4 only one, then two again; the last comes at 5
    arrived, left = array("d", [0, 1, 4, 5]), array("d", [3, 5, 6, 6])
    assert mean_in_flight(arrived, left, 2) == pytest.approx(7 / 4)
    assert mean_in_flight(arrived, left, 4) == 0.0


def test_a_loop_that_hangs_counts_for_all_that_would_have_waited() -> None:
    samples = [(0.0, 0.5, 0.0), (1.0, 0.0, 0.0), (2.0, 0.05, 0.0), (9.0, 1.0, 0.0)]
    found = lags_ms(samples, 0.5, 5.0)
    assert found == pytest.approx([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], abs=0.01)


def test_cpu_is_read_between_samples() -> None:
    samples = [(0.0, 0.0, 1.0), (1.0, 0.0, 2.0), (3.0, 0.0, 3.0)]
    assert [cpu_at(samples, at) for at in (-1.0, 0.5, 2.0, 9.0)] == [1.0, 1.5, 2.5, 3.0]


def test_the_grid_compares_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.grid.LEAST_BARE", {"tools": 40})
    said: list[str] = []
    with running_endpoint() as port:
        grid = Grid(port, tmp_path, 1, said.append)
        [found] = grid.compare([Case("tools", "local", 8, 40)])
    assert grid.failed == []
    assert min(found.bare.per_s, found.ours.per_s, found.bare.cpu_ms, found.ours.cpu_ms) > 0
    assert found.ours.peak_mb > found.bare.peak_mb > 10
    assert said[0].startswith("local-tools-8 ")
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "PEERS", tmp_path / "peers")
    written = report.Found([found]).write(1)
    assert json.loads(written.read_text())["cases"][0]["name"] == "local-tools-8"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.renew(page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| five turns with tools | in the collector | 0 | 8 |" in text


def test_work_that_is_not_done_is_no_figure(tmp_path: Path) -> None:
    with running_endpoint() as port:
        grid = Grid(port, tmp_path, 1, lambda text: None)
        assert list(grid.compare([Case("short", "local", 4, 2)])) == []
    assert "mean reward" in grid.failed[0]


@pytest.mark.parametrize("is_raw", [False, True])
def test_no_prompt_of_a_job_begins_as_one_of_an_earlier_run(is_raw: bool, tmp_path: Path) -> None:
    begins = set()
    for number in range(2):
        rows = vllm_job.write_rows(tmp_path / f"{number}", number, 8, is_raw=is_raw)
        for row in map(json.loads, rows.read_text().splitlines()):
            asked = row["responses_create_params"]
            text = asked["input"] if is_raw else asked["input"][0]["content"]
            begins.add(text[:20])
            assert asked["ignore_eos"] and asked.get("raw_prompt", False) == is_raw
    assert len(begins) == 16


def test_cpu_time_is_that_of_a_process_and_of_its_descendants() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint('spun', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"spun\n"
        own, below = vllm_job.cpu_of(process.pid)
        process.communicate(b"\n")
    assert below >= 0.29 and own < below


@pytest.mark.slow
def test_a_short_soak_leaves_nothing_open() -> None:
    argv = [sys.executable, "-m", "benchmarks.soak", "--tasks", "40", "--repeats", "2"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "80 rollouts in" in done.stdout and "left in flight or open: nothing" in done.stdout


def test_the_chart_of_the_readme_shows_the_table_of_the_page() -> None:
    page = ROOT / "docs/performance.md"
    assert (page.parent / CHART).read_text() == draw_chart(page.read_text()), (
        "python -m benchmarks.chart"
    )
    assert f"docs/{CHART}" in (ROOT / "README.md").read_text()


def test_a_short_rollout_makes_few_calls_and_takes_its_steps_together() -> None:
    argv = [sys.executable, "-m", "benchmarks.calls"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.search(r"a rollout: ([\d,]+) calls, ([\d.]+) steps together", done.stdout)
    assert found, done.stderr
    calls, steps = int(found[1].replace(",", "")), float(found[2])
    assert calls < 1_200 and steps > 6.5, "look up what it makes: python -m benchmarks.calls"
