"""What a running collection shows: its snapshot, and what it costs."""

import asyncio
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from outside import KEYS, NUMBER, collect_outside
from pydantic import ValidationError
from support import Bench, asked, eventually, row
from virtual_time import VirtualTime

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.collecting.live import place
from rollout_kit.collecting.live.client import Here
from rollout_kit.collecting.live.schema import SteerRequest, encode
from rollout_kit.collecting.live.snapshot import Snapshot
from rollout_kit.collecting.live.watcher import Watcher
from rollout_kit.commands.drive import make_run
from rollout_kit.commands.progress import Progress
from rollout_kit.commands.work import open_work
from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import Config
from rollout_kit.errors import ConfigError, ModelError
from rollout_kit.launch.reach import Servers
from rollout_kit.types import JsonObject


class Watched:
    """Collects through a watcher, whose snapshots it keeps."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []
        self.watcher: Watcher

    async def collect(
        self, servers: Servers, config: Config[CollectConfig], argv: Sequence[str], progress: Any
    ) -> int:
        async with open_work(servers, config, argv) as work, work.collection(progress) as found:
            run = make_run(found, servers.ends, Progress(out=progress.out, err=progress.err))
            self.watcher = Watcher(run)
            self.watcher.readers.append(self.seen.append)
            self.watcher.begin()
            async for _ in run.outcomes():
                pass
            self.watcher.end()
            return 0


class SlowModel(ScriptedModel):
    """Refuses question 3, takes its time for question 7, and answers every other one wrongly."""

    def __init__(self) -> None:
        super().__init__(self._say)

    async def responses(self, params: JsonObject) -> JsonObject:
        await asyncio.sleep(40 if asked(params) == "7" else 1)
        return await super().responses(params)

    def _say(self, params: JsonObject) -> str:
        question = asked(params)
        if question == "3":
            raise ModelError("no such question", status=422)
        return question if int(question) % 2 else "wrong"


def test_a_snapshot_shows_what_the_run_knows(bench: Bench, monkeypatch: Any) -> None:
    watched = Watched()
    bench.model = SlowModel()
    rows = [row(str(number)) for number in range(20)]
    VirtualTime(monkeypatch).run(
        bench.collect(rows, through=watched.collect, num_samples_in_parallel=4)
    )
    last, during = watched.seen[-1], watched.seen[-3]
    assert (during.state, last.state) == ("running", "ended")
    assert [each.number for each in watched.seen] == list(range(1, len(watched.seen) + 1))
    for each in watched.seen:
        counts = each.counts
        parts = (counts.done, counts.failed, counts.unverified, counts.in_flight, counts.parked)
        assert sum(parts) + (counts.owed or 0) == counts.planned == 20
    assert (last.counts.done, last.counts.failed, last.counts.in_flight) == (19, 1, 0)
    assert last.reward and (last.reward.number, last.reward.value) == (19, 9 / 19)
    assert last.reward.low and last.reward.high
    assert last.reward.low < last.reward.value < last.reward.high
    [failure] = last.failures
    assert (failure.name, failure.number) == ("ModelError", 1)
    assert "no such question" in failure.message
    [waiting] = during.slowest
    assert waiting.stage == "echo_agent /v1/responses" and waiting.seconds > 20
    assert during.stages == {"echo_agent /v1/responses": 1}
    assert [part.name for part in last.agents] == ["echo_agent"] and not last.arms
    assert last.tail[0].status == "verified" and len(last.tail) == 20
    assert {each.status for each in last.tail} == {"verified", "failed"}
    assert (last.parallel.limit, last.parallel.ceiling) == (4, 4)
    assert json.loads(watched.watcher.raw)["counts"]["done"] == 19


def test_one_snapshot_a_second_whatever_is_read(bench: Bench, monkeypatch: Any) -> None:
    watched = Watched()
    bench.model = SlowModel()
    rows = [row(str(number)) for number in range(20)]
    clock = VirtualTime(monkeypatch)
    clock.run(bench.collect(rows, through=watched.collect, num_samples_in_parallel=4))
    passed = watched.seen[-1].elapsed_s
    assert passed > 40 and len(watched.seen) <= passed + 2
    taken = watched.watcher.num_taken
    assert len({watched.watcher.raw for _ in range(100)}) == 1
    assert watched.watcher.num_taken == taken


def test_a_dear_snapshot_is_taken_the_more_rarely(bench: Bench, monkeypatch: Any) -> None:
    watched = Watched()
    bench.model = SlowModel()
    clock = VirtualTime(monkeypatch)
    watched.seen = Dear(clock)
    rows = [row(str(number)) for number in range(20)]
    clock.run(bench.collect(rows, through=watched.collect, num_samples_in_parallel=4))
    assert len(watched.seen) <= 2 + watched.seen[-1].elapsed_s / 20


class Dear(list[Snapshot]):
    """A reader that takes a tenth of a second for each snapshot."""

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def append(self, snapshot: Snapshot) -> None:
        super().append(snapshot)
        self._clock.burn(0.1)


JSON = {"content-type": "application/json"}


class Visitor:
    """Asks the page of a collection that runs."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @property
    def url(self) -> str:
        eventually(lambda: "http://127.0.0.1" in self._bench.out.getvalue())
        said = self._bench.out.getvalue()
        return next(word for word in said.split() if word.startswith("http://127.0.0.1"))

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, {**JSON, **named})
        try:
            with urllib.request.urlopen(request) as reply:
                raw, status = reply.read(), reply.status
        except urllib.error.HTTPError as error:
            raw, status = error.read(), error.code
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode()


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.usefixtures("own_state")
def test_the_page_shows_and_steers(bench: Bench) -> None:
    visitor = Visitor(bench)

    def visit(note: place.Note) -> str:
        status, page = visitor.ask("/")
        assert status == 200 and "<script" in page
        for name in ("main.js", "style.css", "vendor/preact-htm.js", "plot.js"):
            assert visitor.ask(f"/{name}")[0] == 200
        status, live = visitor.ask("/api/live")
        assert status == 200 and live["servers"] is None
        [shown] = live["collections"]
        assert (shown["run_id"], shown["counts"]["planned"]) == (note.run_id, NUMBER)
        assert visitor.ask(f"/api/history?run={note.run_id}")[1][0][0] >= 0
        asked_for = {"run": note.run_id, "steer": {"paused": True}}
        status, reply = visitor.ask("/api/steer", {**asked_for, "dry_run": True})
        assert (status, reply["state"]) == (200, "running")
        status, reply = visitor.ask("/api/steer", asked_for)
        assert status == 200 and reply["state"] in ("pausing", "paused")
        assert reply["changes"][0]["by"].endswith("(page)")
        status, reply = visitor.ask("/api/steer", {"steer": {"paralel": 3}})
        assert status == 400 and "there is no such knob" in reply["error"]
        assert visitor.ask("/api/steer", [1])[0] == 400
        assert visitor.ask("/api/steer", {"steer": {"paused": False}})[0] == 200
        return visitor.url

    assert collect_outside(bench, visit, dashboard=True).startswith("http://127.0.0.1:")
    assert bench.keys() == KEYS


@pytest.mark.usefixtures("own_state")
def test_the_page_answers_no_other_site_and_no_other_host(bench: Bench) -> None:
    visitor = Visitor(bench)

    def visit(note: place.Note) -> None:
        stop = {"steer": {"stop": "now"}}
        assert visitor.ask("/api/steer", stop, origin="http://evil.example")[0] == 403
        assert visitor.ask("/api/steer", stop, sec_fetch_site="cross-site")[0] == 403
        assert visitor.ask("/api/live", host="evil.example")[0] == 403
        assert visitor.ask("/api/steer", stop, content_type="text/plain")[0] == 415
        assert visitor.ask("/../control.py")[0] == 404

    collect_outside(bench, visit, dashboard=True)
    assert bench.keys() == KEYS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.usefixtures("own_state")
def test_the_page_answers_no_other_user(bench: Bench) -> None:
    visitor, client_of_nobody = Visitor(bench), http.client.HTTPConnection("127.0.0.1")

    def connect(note: place.Note) -> None:
        os.seteuid(65_534)
        try:
            client_of_nobody.sock = socket.socket()
        finally:
            os.seteuid(0)

    def visit(note: place.Note) -> int:
        port = int(visitor.url.rpartition(":")[2])
        with closing(client_of_nobody):
            client_of_nobody.sock.connect(("127.0.0.1", port))
            client_of_nobody.request("POST", "/api/steer", '{"steer":{"stop":"now"}}', JSON)
            return client_of_nobody.getresponse().status

    assert collect_outside(bench, visit, connect=connect, dashboard=True) == 401
    assert bench.keys() == KEYS


@pytest.mark.usefixtures("own_state")
def test_pages_that_poll_compute_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    compute = Watcher._compute

    def count(self: Watcher, *arguments: Any, **keys: Any) -> Snapshot:
        computed.append(self.num_taken)
        return compute(self, *arguments, **keys)

    monkeypatch.setattr(Watcher, "_compute", count)
    visitor = Visitor(bench)

    def poll(note: place.Note) -> int:
        with ThreadPoolExecutor(10) as pool:
            replies = list(pool.map(lambda _: visitor.ask("/api/live")[1], range(100)))
        return max(reply["collections"][0]["number"] for reply in replies)

    last = collect_outside(bench, poll, dashboard=True)
    assert len(computed) <= last + 3, "only the run's own clock computes"
    assert bench.keys() == KEYS


@pytest.mark.usefixtures("own_state")
def test_a_page_of_all_collections_and_servers(bench: Bench) -> None:
    """What `ng_status +web=true` serves."""
    server = {"name": "echo", "health": "ok"}

    async def ask_servers() -> list[JsonObject]:
        return [server]

    async def look(note: place.Note) -> None:
        here = Here("http://head", ask_servers)
        found = await here.live()
        live = json.loads(encode(found))
        assert live["servers"] == [server] and live["url"] == "http://head"
        assert [each["run_id"] for each in live["collections"]] == [note.run_id]
        history = await here.ask(SteerRequest(run=note.run_id, history=True))
        assert json.loads(encode(history.history))
        knobs = {"parallelism": 51}
        reply = await here.ask(SteerRequest(run=note.run_id, steer=knobs, sender="a page"))
        assert "(a page, pid" in reply.changes[0].by
        with pytest.raises(ConfigError, match="no collection with run_id=other"):
            await here.ask(SteerRequest(run="other"))

    collect_outside(bench, lambda note: asyncio.run(look(note)))
    assert bench.keys() == KEYS


@pytest.mark.usefixtures("own_state")
def test_a_port_in_use_is_named_before_anything_is_sent(bench: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        keys: dict[str, Any] = {"dashboard": True, "dashboard_port": port}
        with pytest.raises(ConfigError, match=f"dashboard_port={port}: .*choose another"):
            asyncio.run(bench.collect([row("1")], **keys))
    assert bench.model.calls == []


def test_a_port_without_a_page_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"add \+dashboard=true"):
        CollectConfig.model_validate({"dashboard_port": 6310})
