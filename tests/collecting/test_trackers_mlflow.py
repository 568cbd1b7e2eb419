"""MLflow with its own client and a real server on this machine, which is killed during a run."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import Bench, eventually, row
from tracked import NUM_FREE, collect_held

from rollout_kit.collecting.trackers import tracking
from rollout_kit.serving.sockets import bound_socket

pytest.importorskip("mlflow.server", reason="mlflow is not installed: make test-trackers")

ROWS = [row(f"q{number}") for number in range(NUM_FREE + 3)]


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str

    def ask(self, path: str, **body: Any) -> Any:
        """The JSON reply of its REST API."""
        raw = json.dumps(body).encode() if body else None
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", raw, headers)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.loads(reply.read() or b"null")

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.read() == b"OK"  # and not another program's
        except OSError:
            return False

    def run(self, name: str = "tests") -> Any:
        """The only run of an experiment, as the server tells it; None if it has none yet."""
        try:
            query = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}"
            found = self.ask(query)["experiment"]["experiment_id"]
        except urllib.error.HTTPError:
            return None
        runs = self.ask("/api/2.0/mlflow/runs/search", experiment_ids=[found]).get("runs", [])
        return runs[0] if runs else None

    def steps(self, metric: str) -> list[int]:
        run = self.run()
        if run is None:
            return []
        where = f"run_id={run['info']['run_id']}&metric_key={metric}"
        found = self.ask(f"/api/2.0/mlflow/metrics/get-history?{where}")
        return [point.get("step", 0) for point in found.get("metrics", [])]

    def kill(self) -> None:
        """The server and its workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(folder: Path) -> Server:
    """A server in a process group of its own; another port, should a program have taken it."""
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    kept = ["--artifacts-destination", str(folder / "artifacts")]
    where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (folder / "mlflow.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *where, *store, *kept],
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    found = Server(process, f"http://127.0.0.1:{port}")
    eventually(lambda: process.poll() is not None or found.answers())
    return found if process.poll() is None else start(folder)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(tracking, "CURVE_EVERY_S", 0.05)
    found = start(tmp_path)
    yield found
    if found.process.poll() is None:
        found.kill()


def test_curves_the_table_and_files_reach_the_server(bench: Bench, server: Server) -> None:
    keys = {"experiment": "tests", "tracking_uri": server.url, "tags": {"team": "x"}}
    keys |= {"run_name": "first"}
    reached = lambda: NUM_FREE in server.steps("rollouts/done")  # noqa: E731
    said = collect_held(bench, ROWS, lambda: eventually(reached), mlflow=keys)
    assert "warning" not in said and "MLflow: run first" in said
    run = server.run()
    assert run["info"]["status"] == "FINISHED"
    figures = {each["key"]: each["value"] for each in run["data"]["metrics"]}
    assert figures["reward/mean"] == figures["final/reward"] == figures["final/pass_at_1"] == 1.0
    assert figures["rollouts/done"] == len(ROWS)
    steps = server.steps("rollouts/done")
    assert steps == sorted(steps) and steps[-1] == len(ROWS) and len(set(steps)) > 2
    tags = {each["key"]: each["value"] for each in run["data"]["tags"]}
    assert tags["team"] == "x" and "rollouts.json" in tags["mlflow.loggedArtifacts"]
    [table] = (bench.folder / "artifacts").rglob("rollouts.json")
    content = json.loads(table.read_text())
    assert len(content["data"]) == len(ROWS)
    assert all(len(each) == len(content["columns"]) for each in content["data"])
    names = {path.name for path in (bench.folder / "artifacts").rglob("*") if path.is_file()}
    assert {"rollouts.jsonl", "rollouts.d/run.json", "rollouts_aggregate_metrics.json"} <= names


def test_killing_the_server_does_not_hold_the_collection_up(bench: Bench, server: Server) -> None:
    def kill() -> None:
        eventually(lambda: NUM_FREE in server.steps("rollouts/done"))
        server.kill()

    keys = {"experiment": "tests", "tracking_uri": server.url}
    said = collect_held(bench, ROWS, kill, mlflow=keys, wait_s=1)
    assert len(bench.lines()) == len(ROWS)
    assert said.count("warning: MLflow: ") == 2, said
    assert "the collection goes on without it" in said
    assert "not sent: the last figures, the table, the files, the end of the run" in said


def test_a_server_that_is_not_there_costs_a_warning(bench: Bench) -> None:
    keys = {"experiment": "tests", "tracking_uri": "http://127.0.0.1:9"}
    said = collect_held(bench, ROWS, lambda: None, mlflow=keys, wait_s=1)
    assert len(bench.lines()) == len(ROWS) and "warning: MLflow: " in said


def test_a_server_that_returns_gets_the_rest(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped for a while, as a machine that is out of memory."""

    def stop() -> None:
        eventually(lambda: NUM_FREE in server.steps("rollouts/done"))
        os.killpg(server.process.pid, signal.SIGSTOP)

    keys = {"experiment": "tests", "tracking_uri": server.url}

    close = tracking.Tracking.close

    async def wake_and_close(*given: Any) -> None:
        """Wakes the server when the collection has ended, and the rest is to be sent."""
        os.killpg(server.process.pid, signal.SIGCONT)
        await close(*given)

    monkeypatch.setattr(tracking.Tracking, "close", wake_and_close)
    said = collect_held(bench, ROWS, stop, mlflow=keys)
    assert "not sent" not in said
    assert server.run()["info"]["status"] == "FINISHED"
    assert server.steps("rollouts/done")[-1] == len(ROWS)
