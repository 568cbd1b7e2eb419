"""Sessions of a server with several workers, each a process of its own: every session stays with
its worker, and none is left behind."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import config_of, read_jsonl, write_jsonl

from rollout_kit.api.testing import call_response, making, text_response
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.config.keys import InspectConfig
from rollout_kit.config.load import load
from rollout_kit.errors import SessionLost
from rollout_kit.launch.placement import HttpLimits, placed
from rollout_kit.launch.reach import Servers
from rollout_kit.responses import function_calls
from rollout_kit.serving import registry
from rollout_kit.serving.model import Model
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.peers import Http, Local, Peers
from rollout_kit.session import HEADER, Session, entered
from rollout_kit.types import JsonObject

NUM_ROLLOUTS, NUM_WORKERS = 60, 3

WATCHED = """
import os

from rollout_kit.serving import registry
from rollout_kit.serving.service import get
from rollout_kit.session import current_session
from rollout_kit.types import JsonObject

Shipped = registry.load("resources_servers", "example_session_state_mgmt")


class Watched(Shipped):
    def __init__(self, config, peers, name):
        super().__init__(config, peers, name)
        self.calls = {}

    async def handle(self, path, raw):
        if path != "/tools" and (session := current_session()):
            self.calls.setdefault(session.id, []).append(path)
        return await super().handle(path, raw)

    @get("/report")
    async def report(self) -> JsonObject:
        return {"pid": os.getpid(), "num_open": self.num_sessions, "calls": self.calls}
"""


class Workers:
    """The counter's workers, by URL, and the peers that reach them as `counter`."""

    def __init__(self, peers: Peers, urls: list[str], client: HttpClient) -> None:
        self.peers = peers
        self.urls = urls
        self.client = client

    async def reports(self) -> list[JsonObject]:
        """What each worker says of the sessions that it has seen."""
        return [json.loads((await self.client.get(f"{url}/report")).raw) for url in self.urls]


@asynccontextmanager
async def workers(folder: Path, num_workers: int) -> AsyncIterator[Workers]:
    (folder / "resources_servers/watched").mkdir(parents=True)
    (folder / "resources_servers/watched/app.py").write_text(WATCHED)
    block = {"watched": {"placement": "process", "num_workers": num_workers}}
    (folder / "run.yaml").write_text(json.dumps({"counter": {"resources_servers": block}}))
    config = load(["+config_paths=[run.yaml]"], InspectConfig)
    async with placed(config, default="process", limits=HttpLimits()) as running:
        client = HttpClient()
        try:
            yield Workers(running.peers, running.servers[0].urls, client)
        finally:
            await client.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Counting(Model):
    """Makes the increments that the row asks for, one a turn, and reads the counter.

    It answers nobody before all rollouts have asked, so that all their sessions are open at once.
    """

    def __init__(self, at_the_peak: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(self.Config(), Peers({}), "policy_model")
        self._at_the_peak = at_the_peak
        self._num_asking = 0
        self._all_ask = asyncio.Event()

    async def responses(self, params: JsonObject) -> JsonObject:
        steps = json.loads(params["input"][0]["content"])
        num_made = len(function_calls(params["input"]))
        if num_made == 0:
            self._num_asking += 1
            if self._num_asking == NUM_ROLLOUTS:
                await self._at_the_peak()
                self._all_ask.set()
            await self._all_ask.wait()
        if num_made < len(steps):
            return call_response(("increment_counter", f'{{"count": {steps[num_made]}}}'))
        if num_made == len(steps):
            return call_response(("get_counter_value", "{}"))
        return text_response(params["input"][-1]["output"])


def steps_of(number: int) -> list[int]:
    return [number + 1, *[1] * (number % 4)]


def row(number: int) -> JsonObject:
    """Every third row expects what its rollout does not reach."""
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": str(steps_of(number))}],
        },
        "number": number,
        "initial_count": 1000 * number,
        "expected_count": 1000 * number + sum(steps_of(number)) - (number % 3 == 0),
    }


def test_every_session_stays_with_its_worker_and_none_is_left_open(folder: Path) -> None:
    write_jsonl(folder / "tasks.jsonl", [row(number) for number in range(NUM_ROLLOUTS)])
    at_the_peak: list[JsonObject] = []
    at_the_end: list[JsonObject] = []

    async def main() -> int:
        async with workers(folder, NUM_WORKERS) as counter:

            async def look() -> None:
                at_the_peak.extend(await counter.reports())

            agent = registry.load("responses_api_agents", "simple_agent")
            wiring = {
                "resources_server": {"name": "counter"},
                "model_server": {"name": "policy_model"},
            }
            transports: dict[str, Any] = {
                "counter": counter.peers.transport("counter"),
                "policy_model": Local(Counting(look)),
            }
            peers = Peers(transports)
            transports["agent"] = Local(making(agent, **wiring)(peers, "agent"))
            config = config_of(folder, num_samples_in_parallel=NUM_ROLLOUTS)
            progress = Progress(out=io.StringIO(), err=io.StringIO())
            status = await collect_through(Servers(peers, ["agent"], {}, {}), config, [], progress)
            at_the_end.extend(await counter.reports())
            return status

    assert asyncio.run(main()) == 0
    lines = {line["number"]: line for line in read_jsonl(folder / "rollouts.jsonl")}
    assert {number: line["reward"] for number, line in lines.items()} == {
        number: float(number % 3 != 0) for number in range(NUM_ROLLOUTS)
    }
    for number, line in lines.items():
        total = 1000 * number + sum(steps_of(number))
        assert line["response"]["output"][-2]["output"] == f'{{"count":{total}}}'
    assert len({report["pid"] for report in at_the_end}) == NUM_WORKERS
    assert sum(report["num_open"] for report in at_the_peak) == NUM_ROLLOUTS
    assert all(report["num_open"] > 0 for report in at_the_peak)
    assert [report["num_open"] for report in at_the_end] == [0] * NUM_WORKERS
    sessions = [session for report in at_the_end for session in report["calls"]]
    assert len(sessions) == len(set(sessions)) == NUM_ROLLOUTS
    calls = sorted(calls for report in at_the_end for calls in report["calls"].values())
    assert calls == sorted(
        [
            "/seed_session",
            *["/increment_counter"] * len(steps_of(number)),
            *["/get_counter_value", "/verify", "/close_session"],
        ]
        for number in range(NUM_ROLLOUTS)
    )


def test_a_session_that_strays_to_another_worker_is_lost_and_none_is_begun_for_it(
    folder: Path,
) -> None:
    async def main() -> list[JsonObject]:
        async with workers(folder, 2) as counter:
            home, elsewhere = (Http("counter", [url], counter.client) for url in counter.urls)
            with entered(Session("mine")):
                await Peers({"counter": home}).call("counter", "/seed_session", row(1), dict)
                with pytest.raises(SessionLost, match="counter: this session is not open") as lost:
                    await Peers({"counter": elsewhere}).call("counter", "/get_counter_value", {})
                assert lost.value.status == 410 and lost.value.retryable
            headers = {HEADER: "nobody's"}
            for url in counter.urls:
                reply = await counter.client.post(f"{url}/verify", b"{}", headers=headers)
                assert reply.status == 410
                assert json.loads(reply.raw)["error"]["type"] == "SessionLost"
            return await counter.reports()

    assert [report["num_open"] for report in asyncio.run(main())] == [1, 0]


@pytest.mark.parametrize("num_workers", [1, NUM_WORKERS])
def test_clients_that_know_only_cookies_keep_their_sessions_apart(
    folder: Path, num_workers: int
) -> None:
    async def attempt(url: str, number: int) -> float:
        """As an agent that was written for NeMo Gym: whatever cookies came are sent along."""
        jar = aiohttp.CookieJar(unsafe=True)  # cookies of an IP address count too
        async with aiohttp.ClientSession(url, cookie_jar=jar) as client:

            async def post(path: str, body: Any) -> JsonObject:
                async with client.post(path, json=body) as reply:
                    assert reply.status == 200, await reply.text()
                    return await reply.json()

            await post("/seed_session", row(number))
            for step in steps_of(number):
                await post("/increment_counter", {"count": step})
            verdict = await post("/verify", {**row(number), "response": {"output": []}})
            await post("/close_session", {})
            return verdict["reward"]

    async def main() -> tuple[list[float], list[JsonObject]]:
        async with workers(folder, num_workers) as counter:
            rewards = await asyncio.gather(
                *(attempt(url, number) for url in counter.urls for number in range(6))
            )
            return rewards, await counter.reports()

    rewards, reports = asyncio.run(main())
    assert rewards == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0] * num_workers
    assert [len(report["calls"]) for report in reports] == [6] * num_workers
    assert [report["num_open"] for report in reports] == [0] * num_workers
