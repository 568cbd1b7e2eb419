"""A run's progress is stated once: whatever shows it shows the same snapshot."""

import asyncio
import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from outside import KEYS, NUMBER, ask, collect_outside
from support import Bench, eventually, row
from workplace import ROOT

from rollout_kit.api.testing import run_virtual
from rollout_kit.collecting.live import place, watcher
from rollout_kit.collecting.live.client import AtHead, Here
from rollout_kit.collecting.live.schema import LIVE, STEER, SteerRequest, encode
from rollout_kit.collecting.live.site import routes_of
from rollout_kit.collecting.live.snapshot import Snapshot
from rollout_kit.collecting.live.watcher import Watcher
from rollout_kit.config.keys import HeadServerConfig
from rollout_kit.errors import ConfigError
from rollout_kit.launch.head_client import HeadClient
from rollout_kit.launch.head_server import HeadServer
from rollout_kit.launch.run import RunIdentity
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.types import JsonObject

TOKEN = "the-token-of-this-run"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def head_server() -> HeadServer:
    """That of an `ng_run` on this machine."""
    run, where = RunIdentity("run", TOKEN), HeadServerConfig(port=0)
    return HeadServer(run, where, {}, lambda: None, routes_of(Here()), (STEER,))


def fetch(url: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    headers = {"content-type": "application/json"}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    raw = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, raw, headers)) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def list_by_command(*words: str) -> JsonObject:
    code = "from rollout_kit.commands import main; main('ng_ctl')"
    command = [sys.executable, "-c", code, "+json=true", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["collections"]
    return found


def address(bench: Bench, before: str) -> str:
    """The address that the run has printed."""
    return bench.out.getvalue().partition(before)[2].split()[0]


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url) as reply:
        lines = reply.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_every_door_shows_the_same_snapshot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    seen: list[tuple[JsonObject, dict[str, float]]] = []

    async def look(note: place.Note) -> None:
        async with head_server() as head:
            port = head.url.rpartition(":")[2]

            def through_all() -> list[JsonObject]:
                page = address(bench, "Live page: ")
                return [
                    ask(note, {})["snapshot"],
                    fetch(f"{page}{LIVE}")[1]["collections"][0],
                    fetch(f"{page}{STEER}", {})[1]["snapshot"],
                    fetch(f"{head.url}{LIVE}")[1]["collections"][0],
                    fetch(f"{head.url}{STEER}", {"run": note.run_id}, TOKEN)[1]["snapshot"],
                    list_by_command(),
                    list_by_command(f"+head_server.port={port}"),
                ]

            eventually(lambda: ask(note, {})["snapshot"]["finished"] == NUMBER // 2)
            monkeypatch.setattr(watcher, "EVERY_S", 1e6)  # one more is due, and then none
            metrics, found = dict[str, float](), list[JsonObject]()
            while len({each["number"] for each in found}) != 1:
                found = await asyncio.to_thread(through_all)
                metrics = await asyncio.to_thread(scrape, address(bench, "Prometheus: "))
                if metrics["rollout_kit_run_duration_seconds"] != found[0]["elapsed_s"]:
                    found = []
            assert all(each == found[0] for each in found)
            seen.append((found[0], metrics))

    collect_outside(bench, lambda note: asyncio.run(look(note)), dashboard=True, metrics_port=0)
    [(shown, metrics)] = seen
    assert shown["counts"]["planned"] == NUMBER == metrics["rollout_kit_rollouts_planned"]
    done = metrics['rollout_kit_rollouts_total{status="done"}']
    assert done == shown["counts"]["done"] == NUMBER // 2
    assert metrics["rollout_kit_parallelism_limit"] == shown["parallel"]["limit"] == 50
    assert shown["output"] == str(bench.folder / "rollouts.jsonl")
    assert bench.keys() == KEYS


def test_files_and_lines_have_the_figures_of_the_last_snapshot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    last: list[Snapshot] = []
    end = Watcher.end

    def kept(self: Watcher) -> Snapshot:
        last.append(end(self))
        return last[-1]

    monkeypatch.setattr(Watcher, "end", kept)
    log = bench.folder / "log.csv"
    rows = [*(row(f"q{number}") for number in range(5)), row("q5", "other")]
    run_virtual(bench.collect(rows, json=True, throughput_log=log, num_repeats=2))
    events = [json.loads(line) for line in bench.out.getvalue().splitlines()]
    [shown] = last
    progress = next(each for each in events if each.get("event") == "progress")
    found, counts = bench.metrics(), shown.counts
    assert (counts.done, counts.planned, counts.missing) == (12, 12, 0)
    assert found["counts"]["planned"] == counts.measured == 12
    assert found["counts"]["tasks"] == counts.tasks == 6
    assert found["counts"]["failed"] == counts.failed == 0
    assert found["metrics"]["reward"] == pytest.approx(10 / 12) and shown.reward
    assert shown.reward.value == shown.this_run.reward == pytest.approx(10 / 12)
    assert progress["finished"] == shown.finished == shown.this_run.rollouts == 12
    assert progress["total"] == shown.this_run.total == 12
    assert progress["reward"] == shown.this_run.reward
    with log.open() as stream:
        [line] = csv.DictReader(stream)
    assert int(line["rollouts"]) == 12 and line["mean_reward"] == f"{10 / 12:.4f}"
    history = (bench.folder / "rollouts.d/runs.ndjson").read_text().splitlines()
    assert json.loads(history[-1])["counts"] == found["counts"]


def test_a_run_that_continues_tells_its_own_rollouts_from_earlier_ones(bench: Bench) -> None:
    rows = [row(f"q{number}") for number in range(4)]
    run_virtual(bench.collect(rows))
    run_virtual(bench.collect(rows, json=True, num_repeats=3))
    events = [json.loads(line) for line in bench.out.getvalue().splitlines()]
    progress = next(each for each in events if each.get("event") == "progress")
    assert (progress["finished"], progress["total"]) == (12, 12)
    assert bench.metrics()["counts"]["planned"] == 12


def test_a_request_is_answered_alike_at_every_door(bench: Bench) -> None:
    async def look(note: place.Note) -> None:
        async with head_server() as head:
            where = HeadServerConfig(port=int(head.url.rpartition(":")[2]))
            client = HttpClient()
            doors = [Here(), AtHead(await HeadClient.at(where, client, TOKEN))]
            for number, each in enumerate(doors, 60):
                asked = SteerRequest(steer={"parallelism": number}, sender="a test", dry_run=True)
                reply = await each.ask(asked)
                [change] = reply.changes
                assert (change.what, change.old, change.new) == ("parallelism", 50, number)
                assert "(a test, pid " in change.by and reply.dry_run
                with pytest.raises(ConfigError, match=r"^paralel: there is no such knob"):
                    await each.ask(SteerRequest(steer={"paralel": 1}))
                with pytest.raises(ConfigError, match=r"^no collection with run_id=other runs"):
                    await each.ask(SteerRequest(run="other"))
                history = (await each.ask(SteerRequest(output=note.output, history=True))).history
                assert json.loads(encode(history))
            await client.close()
            wrong = {"steer": {"parallelism": 3}, "dryrun": True}
            status, refusal = await asyncio.to_thread(fetch, f"{head.url}{STEER}", wrong, TOKEN)
            assert status == 400 and "unknown field `dryrun`" in refusal["error"]
            with pytest.raises(ConfigError, match="unknown field `dryrun`"):
                await asyncio.to_thread(ask, note, wrong)
            status, _ = await asyncio.to_thread(fetch, f"{head.url}{STEER}", {})
            assert status == 401, "steering needs the token, also for the same user"

    collect_outside(bench, lambda note: asyncio.run(look(note)))
    assert bench.keys() == KEYS


ADDED = """    num_jokes: int = shown(
        "Jokes so far.", "jokes_total", "jokes/told", of=lambda it: 2 * it.tally.finished
    )
    holdup: """

PROBE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support import Bench, eventually, row
from rollout_kit.api.testing import run_virtual
from rollout_kit.collecting.live.door import OneRun
from rollout_kit.collecting.live.control import Control
from rollout_kit.collecting.live.schema import SteerRequest, encode
from rollout_kit.collecting.live.snapshot import describe
from rollout_kit.collecting.live.watcher import Watcher
from rollout_kit.collecting.trackers.prometheus import families_of
from rollout_kit.collecting.trackers.scalars import scalars_of
from rollout_kit.commands.work import open_work
from rollout_kit.commands.drive import make_run

async def through(servers, config, argv, progress):
    async with open_work(servers, config, argv) as work, work.collection(progress) as found:
        run = make_run(found, servers.ends, progress)
        watcher = Watcher(run)
        watcher.begin()
        async for _ in run.outcomes():
            pass
        last = watcher.end()
        one = OneRun(Control(run, progress.say), watcher)
        reply = json.loads(encode(await one.ask(SteerRequest())))
        live = json.loads(encode(await one.live()))
        [family] = [each for each in families_of(last) if each.name == "rollout_kit_jokes"]
        print(json.dumps({
            "socket": reply["snapshot"]["num_jokes"],
            "page": live["collections"][0]["num_jokes"],
            "tracker": scalars_of(last)["jokes/told"],
            "prometheus": [family.kind, family.help, *family.values.values()],
            "reference": [each for each in describe() if each[0] == "num_jokes"],
        }))
        return 0

folder = Path(sys.argv[2])
folder.mkdir()
run_virtual(Bench(folder).collect([row("a"), row("b")], through=through))
"""


def test_a_figure_that_is_added_to_the_declaration_is_shown_everywhere(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    for name in ("rollout_kit", "responses_api_agents"):
        shutil.copytree(ROOT / name, tmp_path / name)
    path = tmp_path / "rollout_kit/collecting/live/snapshot.py"
    text = path.read_text()
    assert text.count("    holdup: ") == 1
    path.write_text(text.replace("    holdup: ", ADDED))
    command = [sys.executable, "-c", PROBE, str(ROOT / "tests/helpers"), str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "socket": 4,
        "page": 4,
        "tracker": 4,
        "prometheus": ["counter", "Jokes so far.", 4],
        "reference": [["num_jokes", "whole number", "Jokes so far."]],
    }


def test_a_run_that_dies_within_its_reply_has_ended() -> None:
    place.make_folder()
    note = place.Note("abc", os.getpid(), socket.gethostname(), "/x/out.jsonl", "2026")

    def answer(listening: socket.socket, reply: bytes) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(reply)

    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as pool:
        with place.address_of(note.socket) as name:
            listening.bind(name)
        listening.listen()
        for reply, problem in (
            (b'{"changes":[],"dry', "ended during the request"),
            (b'{"changes":1}\n', "the reply is in another format: Expected `array`"),
            (b'{"error":"no"}\n', "^no$"),
        ):
            answering = pool.submit(answer, listening, reply)
            with pytest.raises(ConfigError, match=problem):
                ask(note, {})
            answering.result()
