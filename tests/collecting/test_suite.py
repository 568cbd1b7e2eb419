"""Suites: several benchmarks in one schedule, each with its own output."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollout_kit.collecting.pacing.budget import Budget
from rollout_kit.collecting.parallel import SharedLimit, share_out
from rollout_kit.config.benchmarks.asked import split_suite
from rollout_kit.config.keys import Parallelism
from rollout_kit.errors import ConfigError

BIN = Path(sys.executable).parent
ROWS = {"short": 40, "middle": 60, "long": 20}

MODEL = """
policy_model:
  responses_api_models:
    simulated_model:
      latency_s: {median: 0.05, sigma: 0.4}
      output_tokens: 100
      model_name: MODEL
      prices: {input: 0, output: 100}
"""

DEFINITION = """
about: made for a test
source: {type: url, url: "URL"}
rows: ROWS
mapping:
  prompt: {user: "{question}"}
  fields: {expected_answer: answer}
verifier: {string_match: {}}
sampling: {temperature: 0.5}
repeats: 2
metric: avg@2
license: CC0-1.0
citation: none
follows: nothing else
"""


@pytest.mark.parametrize(
    ("limit", "left", "shares"),
    [
        (8, [10, 10], [4, 4]),
        (8, [30, 10], [6, 2]),
        (8, [100, 1, 1], [6, 1, 1]),
        (8, [100, 0], [8, 0]),
        (8, [3, 2], [3, 2]),
        (2, [5, 5, 5], [1, 1, 0]),
        (8, [0, 0], [0, 0]),
        (0, [5, 5], [0, 0]),
    ],
)
def test_places_are_shared_in_proportion_to_what_is_left(
    limit: int, left: list[int], shares: list[int]
):
    assert share_out(limit, left) == shares


@dataclass
class Sharing:
    """A run as its limit sees it."""

    num_running: int
    num_left: int
    refreshed: int = 0

    def refresh(self) -> None:
        self.refreshed += 1


def test_a_run_gets_the_places_that_others_do_not_use():
    shared = SharedLimit(Parallelism.parse(10), Budget())
    tail, full = Sharing(num_running=1, num_left=0), Sharing(num_running=4, num_left=50)
    limits = [shared.limit_for(each) for each in (tail, full)]
    assert limits[1]() == 9  # one long rollout is left of the other
    tail.num_left = 50
    assert [limit() for limit in limits] == [5, 5]
    full.num_running = 9  # it was alone until now: the other gets each place that is free
    assert [limit() for limit in limits] == [1, 5]
    full.num_running = 8
    assert [limit() for limit in limits] == [2, 5]
    shared.refresh(but=full)
    assert (tail.refreshed, full.refreshed) == (1, 0)


def test_a_list_is_split_into_its_benchmarks():
    words = ["+benchmark=[a, b]", "+limit=5", "+output_jsonl_fpath=out/"]
    first, second = split_suite(words) or [[], []]
    assert first == ["+limit=5", "+benchmark=a", "+output_jsonl_fpath=out/a.jsonl"]
    assert second == ["+limit=5", "+benchmark=b", "+output_jsonl_fpath=out/b.jsonl"]
    assert split_suite(["+benchmark=a"]) is None
    with pytest.raises(ConfigError, match="name benchmarks in a list"):
        split_suite(["+benchmark=[a,,b]"])
    with pytest.raises(ConfigError, match="name a folder"):
        split_suite(["+benchmark=[a,b]", "+output_jsonl_fpath=out.jsonl"])


def write_suite(folder: Path, model: str = "first") -> list[str]:
    """Three definitions with their rows, a model, and the words of the command."""
    for name, number in ROWS.items():
        rows = folder / f"{name}_rows.jsonl"
        lines = [
            {"question": f"What is {at} of {name}?", "answer": str(at)} for at in range(number)
        ]
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
        text = DEFINITION.replace("URL", rows.as_uri()).replace("ROWS", str(number))
        (folder / f"{name}.yaml").write_text(text)
    (folder / f"{model}.yaml").write_text(MODEL.replace("MODEL", model))
    names = ",".join(f"{name}.yaml" for name in ROWS)
    return [
        f"+benchmark=[{names}]",
        f"+config_paths=[{model}.yaml]",
        f"+output_jsonl_fpath=results/{model}",
        "+num_samples_in_parallel=8",
    ]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}


def run(folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / name, *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )


def read_outputs(folder: Path, model: str = "first") -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name in ROWS:
        path = folder / f"results/{model}/{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found[name] = [json.loads(line) for line in lines]
    return found


def keys_of(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(line["_ng_task_index"], line["_ng_rollout_index"]) for line in lines]


def test_a_suite_fills_its_places_from_all_and_has_one_table(tmp_path: Path):
    words = write_suite(tmp_path)
    done = run(tmp_path, "ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_outputs(tmp_path)
    for name, number in ROWS.items():
        assert len(set(keys_of(found[name]))) == len(found[name]) == 2 * number
    times = {
        name: sorted(line["rollout"]["started_at"] for line in lines)
        for name, lines in found.items()
    }
    # none waits for the end of another one
    assert max(each[0] for each in times.values()) < min(each[-1] for each in times.values())
    for name, number in ROWS.items():
        assert f"{name:<9}  {number} " in done.stdout  # the plan
        assert f"{number} × 2" in done.stdout  # the scores
    index = json.loads((tmp_path / "results/first/run.json").read_text())
    assert {name: each["output"] for name, each in index["benchmarks"].items()} == {
        name: f"results/first/{name}.jsonl" for name in ROWS
    }
    metrics = json.loads((tmp_path / "results/first/long_aggregate_metrics.json").read_text())
    assert metrics["benchmark"]["model"] == "first"
    assert metrics["benchmark"]["sampling"] == {"temperature": 0.5}
    again = run(tmp_path, "ng_collect_rollouts", *words)
    assert again.returncode == 0
    assert read_outputs(tmp_path) == found
    alone = run(
        tmp_path,
        "ng_collect_rollouts",
        "+benchmark=short.yaml",
        "+config_paths=[first.yaml]",
        "+output_jsonl_fpath=results/first/short.jsonl",
    )
    assert "80 done" in alone.stdout, alone.stdout + alone.stderr
    assert read_outputs(tmp_path) == found


def test_a_kill_and_a_limit_in_dollars(tmp_path: Path):
    words = write_suite(tmp_path)
    started = subprocess.Popen(
        [BIN / "ng_collect_rollouts", *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not all(read_whole_lines(tmp_path).values()):
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(signal.SIGKILL)
    started.wait()
    before = sum(map(len, read_whole_lines(tmp_path).values()))
    assert before < 2 * sum(ROWS.values())
    limit = 0.5  # 0.01 a rollout
    limited = run(tmp_path, "ng_collect_rollouts", *words, f"+max_cost_usd={limit}")
    assert limited.returncode == 3, limited.stdout + limited.stderr
    spent = sum(
        json.loads(path.read_text())["cost"]["run"]["usd"]
        for path in (tmp_path / "results/first").glob("*_aggregate_metrics.json")
    )
    assert 0.3 < spent <= limit
    done = run(tmp_path, "ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, lines in read_outputs(tmp_path).items():
        assert len(set(keys_of(lines))) == len(lines) == 2 * ROWS[name]


def read_whole_lines(folder: Path) -> dict[str, list[str]]:
    found = {}
    for name in ROWS:
        path = folder / f"results/first/{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        found[name] = text[: text.rfind("\n") + 1].splitlines()
    return found


def test_two_models_in_one_table_and_compared(tmp_path: Path):
    for model in ("first", "second"):
        done = run(tmp_path, "ng_collect_rollouts", *write_suite(tmp_path, model), "+limit=8")
        assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(
        str(path.relative_to(tmp_path)) for path in (tmp_path / "results").glob("*/*.jsonl")
    )
    assert len(files) == 6
    report = run(tmp_path, "ng_report", *files, "+paper=table")
    assert report.returncode == 0, report.stderr
    scores = (tmp_path / "table/benchmarks.md").read_text().splitlines()
    assert scores[0] == "| benchmark | metric | first | second |"
    assert {line.split(" | ")[0] for line in scores[2:5]} == {f"| {name}" for name in ROWS}
    assert "8 of 40 × 2" in (tmp_path / "table/benchmark_runs.md").read_text()
    assert "\\begin{tabular}" in (tmp_path / "table/benchmarks.tex").read_text()
    head, *lines = (tmp_path / "table/benchmark_runs.csv").read_text().splitlines()
    assert head.startswith("benchmark,model,metric,score,low,high,rows,rows_of_definition,repeats")
    assert len(lines) == 6
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Benchmarks</h2>" in page
    compared = run(tmp_path, "ng_compare", *files, "+json=true")
    pairs = json.loads(compared.stdout)["pairs"]
    assert [(Path(each["first"]).stem, Path(each["second"]).stem) for each in pairs] == [
        (name, name) for name in sorted(ROWS)
    ]
    assert all("p_holm" in each for each in pairs)


def test_what_a_suite_does_not_take(tmp_path: Path):
    words = write_suite(tmp_path)
    refused = run(tmp_path, "ng_collect_rollouts", *words, "+only=x:0")
    assert refused.returncode == 1
    assert "only: a suite of benchmarks does not take it: a rollout is of one" in refused.stderr
    twice = [words[0].replace("middle", "short"), *words[1:]]
    refused = run(tmp_path, "ng_collect_rollouts", *twice)
    assert "two of the suite would write results/first/short.jsonl" in refused.stderr
    dry = run(tmp_path, "ng_collect_rollouts", *words, "+dry_run=true")
    assert dry.returncode == 0, dry.stderr
    assert "Nothing was sent." in dry.stdout
    assert not (tmp_path / "results/first/run.json").exists()
