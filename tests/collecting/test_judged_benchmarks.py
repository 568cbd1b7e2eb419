"""Benchmarks with a judge, and the scores that are computed from stored rollouts."""

import json
import os
import subprocess
import sys
from math import sqrt
from pathlib import Path

import pytest

from benchmarks.agreement.shelf.made import make_rows
from rollout_kit.collecting.data.benchmarks.figures import compute_calibration_error
from rollout_kit.collecting.data.benchmarks.win_rate import Battle, compute_win_rate

BIN = Path(sys.executable).parent

POLICY = """
policy_model:
  responses_api_models:
    simulated_model: {model_name: m, answer: text, text: "So it is.\\nConfidence: 70%"}
"""

JUDGE = """
judge:
  responses_api_models:
    simulated_model: {model_name: the-judge, answer: text, text: "REPLY"}
"""


def run(folder: Path, like: str, models: str) -> subprocess.CompletedProcess[str]:
    """A run of the made rows of a benchmark."""
    lines = map(json.dumps, make_rows(like, []))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "own.yaml").write_text(
        f"like: {like}\nsource: {{type: file, file: rows.jsonl}}\nrows: 20\n"
    )
    (folder / "models.yaml").write_text(models)
    return subprocess.run(
        [BIN / "ng_collect_rollouts", "+benchmark=own.yaml", "+config_paths=[models.yaml]"],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "reply", "line"),
    [
        (
            "simple_qa",
            "A",
            "f1 1.000, correct 1.000, correct_given_attempted 1.000, not_attempted 0",
        ),
        ("hle", "GRADE: C", "accuracy 1.000, calibration_error 0.300 over 20 rows"),
        ("health_bench", '{\\"criteria_met\\": true}', "points 0.075, criteria_met 1.000"),
    ],
)
def test_a_judge_grades(name: str, reply: str, line: str, tmp_path: Path) -> None:
    done = run(tmp_path, name, POLICY + JUDGE.replace("REPLY", reply))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Benchmark own: {line}" in done.stdout
    found = json.loads((tmp_path / "results/m/own_aggregate_metrics.json").read_text())
    assert found["benchmark"]["value"] == next(iter(found["benchmark"]["sections"].values()))


def test_without_a_judge_it_does_not_start(tmp_path: Path) -> None:
    done = run(tmp_path, "simple_qa", POLICY)
    assert done.returncode == 1
    assert "judge_model_server: no instance 'judge'" in done.stderr
    assert not (tmp_path / "results").exists()


def test_calibration_error_of_bins_of_equal_confidence() -> None:
    assert compute_calibration_error([]) is None
    assert compute_calibration_error([(0.5, 1.0), (0.5, 0.0)]) == 0.0
    sure = [(1.0, 0.0)] * 100
    unsure = [(0.5, float(number % 2)) for number in range(150)]
    # the first bin is right, and the last one takes 50 of them with all that are sure
    last = (0.5 * 50 + 100) / 150 - 25 / 150
    assert compute_calibration_error([*sure, *unsure]) == pytest.approx(sqrt(0.6) * last)


def test_a_win_rate_is_controlled_for_style() -> None:
    assert compute_win_rate([]) == (None, None)
    plain = [Battle(1.0, 3.0, []), Battle(0.0, 1.0, []), Battle(0.5, 1.0, [])]
    value, interval = compute_win_rate(plain)
    assert value == pytest.approx(0.7, abs=1e-6)
    assert interval is not None and interval[0] <= 0.7 <= interval[1]
    assert compute_win_rate([Battle(1.0, 1.0, [])] * 5)[0] == pytest.approx(1.0, abs=1e-3)
    # longer answers win more often: of answers of equal length, half
    odds = {-0.5: 0.25, 0.5: 0.75, 1.0: 0.9}
    battles = [
        Battle(float(number < 100 * share), 1.0, [length])
        for length, share in odds.items()
        for number in range(100)
    ]
    raw, _ = compute_win_rate([each._replace(style=[]) for each in battles])
    controlled, _ = compute_win_rate(battles)
    assert raw == pytest.approx(190 / 300, abs=1e-6)
    assert controlled == pytest.approx(0.5, abs=1e-3)
