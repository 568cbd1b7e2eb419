"""A suite of eight shipped benchmarks from a stand-in of the hub: killed, limited, and compared."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("huggingface_hub")

from hub import Hub, serve_hub
from published import publish

from benchmarks.agreement.shelf.comparison import list_parts
from benchmarks.agreement.shelf.made import NUM_ROWS, make_rows
from rollout_kit.config.benchmarks.definition import read_definition

BIN = Path(sys.executable).parent

NAMES = ["amc23", "drop", "longbench_v2", "minerva_math", "mrcr", "musr", "truthful_qa"]
NAMES += ["zebra_logic"]

AT_ONCE = 8

MODEL = """
policy_model:
  responses_api_models:
    simulated_model:
      latency_s: {median: 0.05, sigma: 0.6}
      output_tokens: 100
      answer: text
      text: "ANSWER: B"
      model_name: MODEL
      prices: {input: 0, output: 100}
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as found:
        for name in NAMES:
            definition = read_definition(name)
            publish(found, definition, make_rows(name, list_parts(definition)))
        yield found


class Suite:
    """Commands in a folder, with the stand-in of the hub."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder = folder
        places = {"XDG_CACHE_HOME": "cache", "HF_HOME": "hub"}
        own = {name: str(folder / each) for name, each in places.items()}
        self.environment = {**os.environ, **own, "HF_ENDPOINT": hub.url}

    def words(self, model: str) -> list[str]:
        (self.folder / f"{model}.yaml").write_text(MODEL.replace("MODEL", model))
        return [
            str(BIN / "ng_collect_rollouts"),
            f"+benchmark=[{','.join(NAMES)}]",
            f"+config_paths=[{model}.yaml]",
            f"+num_samples_in_parallel={AT_ONCE}",
        ]

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, status: int = 0) -> str:
        running = self.start(*words)
        said, _ = running.communicate()
        assert running.returncode == status, said
        return said

    def lines(self, model: str) -> dict[str, list[dict[str, Any]]]:
        """Whole lines of each output."""
        found = {}
        for name in NAMES:
            path = self.folder / f"results/{model}/{name}.jsonl"
            text = path.read_text() if path.exists() else ""
            found[name] = [json.loads(each) for each in text[: text.rfind("\n") + 1].splitlines()]
        return found


def check_keys(found: dict[str, list[dict[str, Any]]]) -> None:
    """Each key once."""
    for name, lines in found.items():
        keys = [(line["_ng_task_index"], line["_ng_rollout_index"]) for line in lines]
        assert len(set(keys)) == len(keys) == NUM_ROWS * read_definition(name).repeats, name


def check_tails(found: dict[str, list[dict[str, Any]]]) -> None:
    """While the last 5 % of a benchmark run, rollouts of others are in flight."""
    spans: dict[str, list[tuple[datetime, datetime]]] = {}
    for name, lines in found.items():
        begun = [datetime.fromisoformat(line["rollout"]["started_at"]) for line in lines]
        lasting = [timedelta(seconds=line["rollout"]["duration_s"]) for line in lines]
        spans[name] = [(at, at + each) for at, each in zip(begun, lasting, strict=True)]
    *early, _ = sorted(spans, key=lambda name: max(end for _, end in spans[name]))
    for name in early:
        ends = sorted(end for _, end in spans[name])
        tail = ends[int(0.95 * len(ends)) - 1]
        others = [span for other in NAMES if other != name for span in spans[other]]
        assert any(begin <= tail < end for begin, end in others), name


@pytest.mark.slow
def test_a_suite_of_eight(hub: Hub, tmp_path: Path) -> None:
    suite = Suite(tmp_path, hub)
    words = suite.words("first")
    started = suite.start(*words)
    while sum(map(len, suite.lines("first").values())) < 40:
        assert started.poll() is None, started.communicate()[0]
        time.sleep(0.02)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    limit = 0.5  # 0.01 a rollout
    suite.run(*words, f"+max_cost_usd={limit}", status=3)
    metrics = (tmp_path / "results/first").glob("*_aggregate_metrics.json")
    spent = sum(json.loads(path.read_text())["cost"]["run"]["usd"] for path in metrics)
    assert 0.3 < spent <= limit
    said = suite.run(*words)
    assert "amc23         avg@16" in said and "drop          f1 " in said
    check_keys(suite.lines("first"))
    second = suite.words("second")
    suite.run(*second)
    check_keys(found := suite.lines("second"))
    check_tails(found)

    files = sorted(str(path) for path in tmp_path.glob("results/*/*.jsonl"))
    assert len(files) == 2 * len(NAMES)
    suite.run(str(BIN / "ng_report"), *files, "+paper=table")
    for end in ("md", "tex", "csv"):
        for table in ("benchmarks", "benchmark_runs"):
            text = (tmp_path / f"table/{table}.{end}").read_text().replace("\\_", "_")
            assert all(name in text for name in NAMES), (table, end)
    compared = json.loads(suite.run(str(BIN / "ng_compare"), *files, "+json=true"))
    assert [Path(each["first"]).stem for each in compared["pairs"]] == sorted(NAMES)
    assert all("p_holm" in each for each in compared["pairs"])
