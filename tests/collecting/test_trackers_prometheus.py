"""/metrics of a collection and of a head server, read by Prometheus' own parser."""

import asyncio
import math
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support import Bench, eventually, row
from tracked import NUM_FREE, collect_held

from rollout_kit.config.keys import HeadServerConfig
from rollout_kit.errors import ConfigError
from rollout_kit.launch import exposition
from rollout_kit.launch.head_server import HeadServer
from rollout_kit.launch.placement import Server
from rollout_kit.launch.run import RunIdentity
from rollout_kit.serving.sockets import bound_socket

pytest.importorskip("prometheus_client")
from prometheus_client import parser

ROWS = [row(f"q{number}", "q0") for number in range(NUM_FREE + 3)]


def scrape(url: str, token: str = "") -> dict[str, Any]:
    """Name → its family, as Prometheus reads it."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("authorization", f"Bearer {token}")
    with urllib.request.urlopen(request) as reply:
        assert reply.headers["content-type"].startswith("text/plain")
        text = reply.read().decode()
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def values(family: Any, suffix: str = "") -> dict[tuple[str, ...], float]:
    """Label values → value."""
    samples = [each for each in family.samples if each.name == f"{family.name}{suffix}"]
    return {tuple(each.labels.values()): each.value for each in samples}


def test_a_collection_serves_its_figures(bench: Bench) -> None:
    found: dict[str, Any] = {}

    def look() -> None:
        def has_come() -> bool:
            said = bench.out.getvalue().partition("Prometheus: ")[2].split()
            found.update(scrape(said[0]) if said else {})
            rollouts = found.get("rollout_kit_rollouts")
            return bool(rollouts and values(rollouts, "_total")[("done",)] == NUM_FREE)

        eventually(has_come)

    collect_held(bench, ROWS, look, metrics_port=0)
    ended = values(found["rollout_kit_rollouts"], "_total")
    assert ended == {("done",): NUM_FREE, ("failed",): 0, ("unverified",): 0}
    one = {name: values(family).get(()) for name, family in found.items()}
    assert one["rollout_kit_rollouts_planned"] == len(ROWS)
    assert one["rollout_kit_rollouts_in_flight"] == one["rollout_kit_parallelism_limit"] == 1
    assert one["rollout_kit_reward_mean"] == pytest.approx(1 / NUM_FREE)
    assert values(found["rollout_kit_agent_rollouts"]) == {("echo_agent",): NUM_FREE}
    duration = found["rollout_kit_rollout_duration_seconds"]
    assert duration.type == "histogram" and values(duration, "_count") == {(): NUM_FREE}
    assert values(found["rollout_kit_output_tokens"], "_total")[()] == NUM_FREE
    for name, family in found.items():
        assert family.documentation.endswith("."), name
        assert family.type in ("gauge", "counter", "histogram"), name
        for sample in family.samples:
            assert not {"task", "task_id", "rollout"} & sample.labels.keys()
            assert math.isfinite(sample.value)


def test_a_port_that_is_taken_is_named_before_the_first_request(bench: Bench) -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port={port}: "):
            asyncio.run(bench.collect(ROWS, metrics_port=port))
    assert bench.model.calls == []


def test_a_head_server_tells_of_its_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = RunIdentity("run", "the-token-of-this-run")

    async def ask() -> dict[str, Any]:
        async with HeadServer(run, HeadServerConfig(port=0), {}, lambda: None) as head:
            assert await asyncio.to_thread(scrape, f"{head.url}/metrics") == {}
            head.announce([Server("echo", "resources_servers", "echo", ["http://x"])])
            return await asyncio.to_thread(scrape, f"{head.url}/metrics")

    found = asyncio.run(ask())
    assert values(found["rollout_kit_server_up"]) == {("echo", "resources_servers"): 1.0}
    assert values(found["rollout_kit_server_restarts"], "_total") == {("echo", "echo"): 0.0}
    assert values(found["rollout_kit_server_uptime_seconds"])[("echo", "echo")] >= 0


def test_each_process_of_a_server_has_its_restarts() -> None:
    workers = [
        {"label": "echo-0", "restarts": 2, "uptime_s": 5.0},
        {"label": "echo-1", "restarts": 0, "uptime_s": None},
    ]
    echo = {"name": "echo", "server_type": "a", "state": "restarting", "workers": workers}
    text = bytes(exposition.expose_servers(lambda: [echo], "").body).decode()
    found = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert values(found["rollout_kit_server_up"]) == {("echo", "a"): 0.0}
    restarts = values(found["rollout_kit_server_restarts"], "_total")
    assert restarts == {("echo", "echo-0"): 2.0, ("echo", "echo-1"): 0.0}
    assert values(found["rollout_kit_server_uptime_seconds"]) == {("echo", "echo-0"): 5.0}


def test_a_head_server_without_the_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    reply = exposition.expose_servers(lambda: [], "")
    assert reply.status_code == 501 and b"rollout-kit[prometheus]" in bytes(reply.body)
