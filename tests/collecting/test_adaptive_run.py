"""Whole runs whose limit adapts itself: under a virtual clock, and (slow) as a collecting process
with an endpoint in a process of its own."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from hosted import through_openai_model
from support import Bench, row, write_jsonl
from virtual_time import VirtualTime

from rollout_kit.serving import registry

SimulatedModel = registry.load("responses_api_models", "simulated_model")

COMMAND = "from rollout_kit.commands import main; main('ng_collect_rollouts')"

ECHO = """
from rollout_kit.serving.resources_server import ResourcesServer

class Anything(ResourcesServer):
    def verify(self, task, response):
        return 1.0
"""


class Place:
    """A folder with a verifier, and a policy behind an endpoint that is simulated."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.endpoint: dict[str, Any] = {}
        self.out = folder / "out.txt"

    def argv(self, rollouts: int, parallel: str, *keys: str) -> list[str]:
        app = self.folder / "resources_servers/any/app.py"
        app.parent.mkdir(parents=True, exist_ok=True)
        app.write_text(ECHO)
        url = f"http://127.0.0.1:{self.port}/v1"
        simulated = {"placement": "process", "port": self.port, **self.endpoint}
        openai = {"openai_base_url": url, "openai_model": "simulated"}
        wiring = {"resources_server": "any", "model_server": "policy_model"}
        agent = {name: {"type": "", "name": each} for name, each in wiring.items()}
        servers = {
            "endpoint": {"responses_api_models": {"simulated_model": simulated}},
            "policy_model": {"responses_api_models": {"openai_model": openai}},
            "any": {"resources_servers": {"any": {}}},
            "any_simple_agent": {"responses_api_agents": {"simple_agent": agent}},
        }
        (self.folder / "all.yaml").write_text(yaml.safe_dump(servers))
        rows = [{"responses_create_params": {"input": f"{n}"}} for n in range(rollouts)]
        write_jsonl(self.folder / "tasks.jsonl", rows)
        return [
            "+config_paths=[all.yaml]",
            "+agent_name=any_simple_agent",
            "+input_jsonl_fpath=tasks.jsonl",
            "+output_jsonl_fpath=rollouts.jsonl",
            f"+num_samples_in_parallel={parallel}",
            *keys,
        ]

    def start(self, *argv: str) -> "subprocess.Popen[bytes]":
        with self.out.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-c", COMMAND, *argv],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats") as reply:
            return json.load(reply)

    def metrics(self) -> dict[str, Any]:
        return json.loads((self.folder / "rollouts_aggregate_metrics.json").read_text())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def rate_seen(place: Place, parallel: str, per_minute: int, seconds: float) -> tuple[float, float]:
    """Share of the allowed rate that passed, from the first request on, and of requests answered
    429."""
    place.endpoint |= {
        "latency_s": 0.3,
        "rate_limit": {"requests_per_minute": per_minute, "burst_s": 1},
    }
    process = place.start(*place.argv(round(2 * per_minute * seconds / 60), parallel))
    try:
        give_up = time.monotonic() + 60
        while True:
            try:
                if place.stats()["requests"]:
                    break
            except OSError:
                assert process.poll() is None and time.monotonic() < give_up, place.out.read_text()
            time.sleep(0.05)
        time.sleep(seconds)
        stats = place.stats()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    passed, refused = stats["by_status"].get("200", 0), stats["num_429"]
    share = passed / (per_minute * stats["span_s"] / 60)
    return share, refused / stats["requests"]


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 1000])
def test_a_rate_limit_is_reached_from_any_start(
    place: Place, start: int, record_property: Any
) -> None:
    share, refused = rate_seen(place, f"1-{start}-4000", 5000, 75)
    record_property(f"5,000 a minute from {start}", f"{share:.1%}, {refused:.2%} answered 429")
    assert share >= 0.9 and refused < 0.02, place.out.read_text()
    changes = place.metrics()["parallelism"]["changes"]
    assert changes and changes[0][1] == min(start, 8)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["auto", "1-1000-4000"])
def test_a_hidden_capacity_is_found_over_sockets(
    place: Place, parallel: str, record_property: Any
) -> None:
    place.endpoint |= {"latency_s": {"median": 0.4, "sigma": 0.4}, "max_concurrent_requests": 40}
    process = place.start(*place.argv(20_000, parallel))
    seen = []
    try:
        time.sleep(40)
        for _ in range(60):
            time.sleep(0.5)
            seen.append(place.stats()["in_flight"]["now"])
        assert process.poll() is None, place.out.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    in_flight = sum(seen) / len(seen)
    record_property(f"40 at a time, {parallel}", f"{in_flight:.1f} in flight")
    assert in_flight == pytest.approx(40, rel=0.25), place.metrics()["parallelism"]


def collect(
    bench: Bench, time: VirtualTime, endpoint: dict[str, Any], rollouts: int, **keys: Any
) -> dict[str, Any]:
    """What this endpoint, asked by an `openai_model`, counts of a run."""
    simulated = SimulatedModel(SimulatedModel.Config.model_validate(endpoint), None, "endpoint")

    async def main() -> dict[str, Any]:
        async with through_openai_model(simulated) as bench.model:
            assert await bench.collect([row(f"{n}") for n in range(rollouts)], **keys) == 0
            return await simulated.report()

    return time.run(main())


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return VirtualTime(monkeypatch)


def test_auto_comes_near_to_a_rate_limit_and_hardly_ever_runs_into_it(
    bench: Bench, virtual_time: VirtualTime
) -> None:
    per_minute = 600
    limit = {"requests_per_minute": per_minute, "burst_s": 1}
    endpoint = {"latency_s": 0.3, "rate_limit": limit}
    stats = collect(bench, virtual_time, endpoint, 160, num_samples_in_parallel="auto")
    share = stats["by_status"]["200"] / (per_minute * stats["span_s"] / 60)
    assert share >= 0.75 and stats["num_429"] / stats["requests"] < 0.02, (share, stats)
    assert 1 <= bench.metrics()["parallelism"]["last"] <= 4096


def test_outcomes_that_come_at_once_raise_the_limit_like_single_ones(
    bench: Bench, virtual_time: VirtualTime
) -> None:
    collect(bench, virtual_time, {"latency_s": 1}, 600, num_samples_in_parallel="auto")
    changes = bench.metrics()["parallelism"]["changes"]
    reached = min(at for at, _, after, _ in changes if after >= 64)
    assert reached <= 8, "one by one it would take 56 seconds from the first limit, 8"


def test_each_change_is_told_with_its_reason(bench: Bench, virtual_time: VirtualTime) -> None:
    endpoint = {"latency_s": 0.05, "max_concurrent_requests": 64}
    keys = {"num_samples_in_parallel": "1-32-64", "json": True}
    collect(bench, virtual_time, endpoint, 1500, **keys)
    events = [json.loads(line) for line in bench.out.getvalue().splitlines()]
    told = [each for each in events if each.get("event") == "parallelism"]
    kept = bench.metrics()["parallelism"]
    assert told and told[0]["before"] == 32, "the start"
    assert all(each["why"] for each in told)
    assert [each["after"] for each in told] == [after for _, _, after, _ in kept["changes"]]


def test_what_cannot_be_asked_for_is_said_by_the_key_s_name(place: Place) -> None:
    process = place.start(*place.argv(1, "8-4-16"))
    assert process.wait(60) == 1
    assert "num_samples_in_parallel=8-4-16: of min-start-max" in place.out.read_text()
