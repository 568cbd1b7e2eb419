"""Steering a running collection: every knob, and that no rollout is lost or comes twice."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from outside import KEYS, NUMBER, ROWS, ask, collect_outside
from support import Bench, Echo, EchoRequest, asked
from virtual_time import VirtualTime

from rollout_kit.api.testing import ScriptedModel, making
from rollout_kit.collecting.live import client, place, watcher
from rollout_kit.collecting.live.control import Control
from rollout_kit.collecting.live.door import open_door
from rollout_kit.collecting.live.schema import encode
from rollout_kit.collecting.live.snapshot import KnobChange, Snapshot
from rollout_kit.collecting.live.watcher import Watcher
from rollout_kit.commands.ctl import format_changes
from rollout_kit.commands.drive import make_run
from rollout_kit.commands.progress import Progress
from rollout_kit.commands.work import open_work
from rollout_kit.config.keys import CollectConfig
from rollout_kit.config.load import Config
from rollout_kit.errors import ConfigError
from rollout_kit.launch.reach import Servers
from rollout_kit.types import JsonObject, Outcome, VerifyResponse

ctl = as_function("ng_ctl")


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110  (its clock is virtual)
        await asyncio.sleep(0.25)


class SteadyModel(ScriptedModel):
    """Answers after a second; questions in `stuck` only once it is set."""

    def __init__(self) -> None:
        super().__init__(asked)
        self.stuck: set[str] = set()

    async def responses(self, params: JsonObject) -> JsonObject:
        await until(lambda: asked(params) not in self.stuck)
        await asyncio.sleep(1)
        return await super().responses(params)


class Steered:
    """Collects while `script` steers. `at(number)` returns once so many rollouts have ended."""

    def __init__(self, bench: Bench, script: Callable[["Steered"], Awaitable[None]]) -> None:
        self.bench, self._script = bench, script
        self.control: Control
        self.watcher: Watcher
        self.run: Any = None
        self.outcomes: list[Outcome] = []
        self.highest = 0
        """Most that was in flight."""

    async def collect(
        self, servers: Servers, config: Config[CollectConfig], argv: Sequence[str], progress: Any
    ) -> int:
        async with open_work(servers, config, argv) as work, work.collection(progress) as found:
            shown = Progress(out=progress.out, err=progress.err)
            run = self.run = make_run(found, servers.ends, shown)
            self.control = Control(run, shown.say)
            self.watcher = Watcher(run, self.control)
            self.watcher.begin()
            async with open_door(self.control, self.watcher, shown.say):
                script = asyncio.ensure_future(self._script(self))
                async for outcome in run.outcomes():
                    self.outcomes.append(outcome)
                    self.highest = max(self.highest, run.schedule.in_flight)
                self.watcher.end()
                await script
            return 0

    async def at(self, number: int) -> None:
        await until(lambda: len(self.outcomes) >= number)

    async def steer(self, **asked: Any) -> list[KnobChange]:
        return await self.control.steer(asked, "a test")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return VirtualTime(monkeypatch)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def collect(
    bench: Bench, clock: VirtualTime, script: Callable[[Steered], Awaitable[None]], **keys: Any
) -> Steered:
    if not isinstance(bench.model, SteadyModel):
        bench.model = SteadyModel()
    steered = Steered(bench, script)
    given = {"num_samples_in_parallel": 50, **keys}
    clock.run(bench.collect(ROWS, through=steered.collect, **given))
    return steered


def finish(bench: Bench, clock: VirtualTime) -> None:
    """Continue without steering: afterwards every key is there exactly once."""
    bench.model = SteadyModel()
    clock.run(bench.collect(num_samples_in_parallel=500))
    assert bench.keys() == KEYS


def test_parallelism_is_raised_lowered_and_left_to_adapt(bench: Bench, clock: VirtualTime) -> None:
    seen: list[int] = []

    async def script(steered: Steered) -> None:
        await steered.at(100)
        assert steered.highest in (49, 50)
        await steered.steer(parallelism=200)
        await steered.at(350)
        seen.append(steered.run.schedule.in_flight)
        await steered.steer(parallelism=10)
        await steered.at(600)
        seen.append(steered.run.schedule.in_flight)
        await steered.steer(parallelism="4-20-300")
        await steered.at(800)
        seen.append(steered.run.limiter())
        await steered.steer(parallelism="auto")

    steered = collect(bench, clock, script)
    assert bench.keys() == KEYS
    assert 50 < seen[0] <= 200 and 9 <= seen[1] <= 10 and 4 <= seen[2] <= 300
    assert [change.new for change in steered.control.changes] == [200, 10, "4-20-300", "auto"]
    noted = json.loads((bench.folder / "rollouts.d/run.json").read_text())["steering"]
    assert [(each["what"], each["old"], each["new"]) for each in noted] == [
        ("parallelism", 50, 200),
        ("parallelism", 200, 10),
        ("parallelism", 10, "4-20-300"),
        ("parallelism", "4-20-300", "auto"),
    ]
    assert {each["by"] for each in noted} == {"a test"} and all(each["at"] for each in noted)


def test_a_pause_drains_and_says_so_and_the_run_goes_on(bench: Bench, clock: VirtualTime) -> None:
    async def script(steered: Steered) -> None:
        await steered.at(500)
        await steered.steer(paused=True)
        assert steered.control.state == "pausing"
        await until(lambda: steered.control.state == "paused")
        ended = len(steered.outcomes)
        await asyncio.sleep(600)
        assert len(steered.outcomes) == ended and steered.run.schedule.in_flight == 0
        assert steered.watcher.snapshot and steered.watcher.snapshot.state == "paused"
        assert await steered.steer(paused=True) == []
        await steered.steer(paused=False)
        await steered.at(ended + 100)

    steered = collect(bench, clock, script)
    assert bench.keys() == KEYS and len(steered.outcomes) == NUMBER
    said = bench.out.getvalue()
    assert said.count("paused: nothing is in flight any more") == 1
    assert "nothing has finished for" not in said


@pytest.mark.parametrize("paused_first", [True, False])
def test_a_stop_ends_the_run_and_another_continues(
    bench: Bench, clock: VirtualTime, paused_first: bool
) -> None:
    async def script(steered: Steered) -> None:
        await steered.at(300)
        if paused_first:
            await steered.steer(paused=True)
            await asyncio.sleep(10)
        [change] = await steered.steer(stop="drain")
        assert change.new == "drain"
        assert await steered.steer(stop="drain") == [], "twice is as once"
        with pytest.raises(ConfigError, match="parallelism: the run is stopping"):
            await steered.steer(parallelism=3)

    steered = collect(bench, clock, script)
    assert 300 <= len(steered.outcomes) < 500 and len(bench.lines()) == len(steered.outcomes)
    finish(bench, clock)


def test_a_stop_now_cancels_what_hangs(bench: Bench, clock: VirtualTime) -> None:
    bench.model = SteadyModel()
    bench.model.stuck = {"7", "8"}

    async def script(steered: Steered) -> None:
        await steered.at(300)
        await steered.steer(stop="now")

    steered = collect(bench, clock, script)
    assert len(steered.outcomes) < 500
    finish(bench, clock)


def test_limits_end_the_run_and_can_be_raised_before(bench: Bench, clock: VirtualTime) -> None:
    async def script(steered: Steered) -> None:
        await steered.at(100)
        await steered.steer(max_total_tokens=1, max_minutes=100)

    first = collect(bench, clock, script, max_total_tokens=10_000_000)
    assert first.run.ending.value == "limit"
    assert len(first.outcomes) <= 150

    async def raise_it(steered: Steered) -> None:
        await steered.at(100)
        await steered.steer(max_minutes=None, max_total_tokens=None, max_cost_usd=5)
        assert steered.run.limits.budget.max_cost_usd == 5.0

    second = collect(bench, clock, raise_it, max_minutes=0.1)
    assert second.run.ending.value == "done" and bench.keys() == KEYS
    assert "max_minutes: 0.1 → null, by a test" in bench.out.getvalue()


def test_a_time_limit_that_is_over_ends_the_run(bench: Bench, clock: VirtualTime) -> None:
    async def script(steered: Steered) -> None:
        await steered.at(200)
        await steered.steer(max_minutes=0.01)

    steered = collect(bench, clock, script)
    assert steered.run.ending.value == "limit" and len(steered.outcomes) < 400
    finish(bench, clock)


async def stuck_ids(steered: Steered) -> list[str]:
    """How requests name the rollouts that hang."""
    await steered.at(500)
    assert steered.watcher.snapshot
    number = len(steered.bench.model.stuck)
    return [each.rollout for each in steered.watcher.snapshot.slowest[:number]]


def test_a_cancelled_rollout_is_owed_and_a_dropped_one_is_not(
    bench: Bench, clock: VirtualTime
) -> None:
    bench.model = SteadyModel()
    bench.model.stuck = {"3", "4"}

    async def script(steered: Steered) -> None:
        first, second = await stuck_ids(steered)
        [change] = await steered.steer(cancel=[first])
        assert (change.what, change.old, change.new) == (first, "in flight", "owed")
        assert await steered.steer(cancel=first) == [], "twice is as once"
        [change] = await steered.steer(cancel=[second], drop=True)
        assert change.new == "dropped"
        with pytest.raises(ConfigError, match="is not in flight"):
            await steered.steer(cancel=[second])

    collect(bench, clock, script)
    assert len(bench.keys()) == NUMBER - 2
    [failure] = bench.lines("failures")
    assert failure["failure"]["class"] == "Dropped" and failure["failure"]["terminal"]
    assert "Still to come: 1 rollout." not in bench.out.getvalue()  # this test prints no report
    bench.model = SteadyModel()
    clock.run(bench.collect(num_samples_in_parallel=500))
    dropped = {("3", 0), ("4", 0)} - set(bench.keys())
    assert bench.keys() == sorted(set(KEYS) - dropped) and len(dropped) == 1


def test_a_requeued_rollout_starts_again_in_the_same_run(bench: Bench, clock: VirtualTime) -> None:
    bench.model = SteadyModel()
    bench.model.stuck = {"3", "4", "5"}

    async def script(steered: Steered) -> None:
        first, second, third = await stuck_ids(steered)
        await steered.steer(cancel=[first, third])
        steered.bench.model.stuck = set()
        await steered.steer(requeue=[first, second])
        await steered.at(600)
        await steered.steer(paused=True)
        await steered.steer(cancel=third, drop=True)
        await steered.steer(paused=False)

    steered = collect(bench, clock, script)
    assert len(bench.keys()) == len(set(bench.keys())) == NUMBER - 1
    [failure] = bench.lines("failures")
    assert failure["failure"]["class"] == "Dropped"
    assert len(steered.outcomes) == NUMBER


def test_a_response_in_hand_outlives_its_cancellation(bench: Bench, clock: VirtualTime) -> None:
    """What was paid for is kept, and only its verdict is owed."""

    async def script(steered: Steered) -> None:
        await until(lambda: slowest(steered)[0].stage == "echo /verify")
        name = slowest(steered)[0].rollout
        await steered.steer(cancel=[name])
        steered.bench.verifying.set()
        await steered.steer(requeue=[name])

    bench.verifying = asyncio.Event()  # type: ignore[attr-defined]
    bench.verifier = hesitating(bench.verifying)  # type: ignore[attr-defined]
    steered = collect(bench, clock, script, park_after_s=1e6)
    assert bench.keys() == KEYS
    assert len(steered.bench.model.calls) == NUMBER, "no response was generated twice"


def slowest(steered: Steered) -> Any:
    steered.watcher._due = 0
    steered.watcher.look()
    assert steered.watcher.snapshot
    return steered.watcher.snapshot.slowest


def hesitating(ready: asyncio.Event) -> Callable[..., Any]:
    class Hesitating(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if body.expected == "11":
                await ready.wait()
            return await super().verify(body)

    return making(Hesitating)


@pytest.mark.parametrize(
    ("asked_for", "problem"),
    [
        ({"paralelism": 4}, "paralelism: there is no such knob (did you mean 'parallelism'?)"),
        ({"parallelism": 0, "paused": True}, "parallelism: must be at least 1, got 0"),
        ({"parallelism": "9-3"}, "parallelism: give a number, auto, or min-start-max"),
        ({"max_cost_usd": -1}, "max_cost_usd: must be above 0, got -1"),
        ({"max_cost_usd": "5"}, "max_cost_usd: expected a number, or null for no limit, got '5'"),
        ({"max_total_tokens": 1.5}, "max_total_tokens: expected a whole number, got 1.5"),
        ({"max_minutes": True}, "max_minutes: expected a number, or null for no limit, got True"),
        ({"paused": 1}, "paused: expected true or false, got 1"),
        ({"stop": "later"}, "stop: expected drain or now, got 'later'"),
        ({"cancel": ["x"]}, "cancel: name a rollout as <task_id>:<rollout_index>, not 'x'"),
        ({"cancel": [5]}, "cancel: name a rollout as <task_id>:<rollout_index>, not 5"),
        ({"requeue": "x:0", "parallelism": 9}, "requeue: x:0 is not in flight"),
        ({"drop": True}, "drop: name the rollout with cancel=…"),
        ({"drop": "yes"}, "drop: expected true or false, got 'yes'"),
        (["paused"], "a request is a JSON object of knobs"),
    ],
)
def test_a_wrong_request_changes_nothing(
    bench: Bench, clock: VirtualTime, asked_for: Any, problem: str
) -> None:
    async def script(steered: Steered) -> None:
        await steered.at(100)
        with pytest.raises(ConfigError) as raised:
            await steered.control.steer(asked_for, "a test")
        assert problem in str(raised.value) and "\n" not in str(raised.value)
        assert steered.control.changes == [] and steered.control.state == "running"
        assert steered.run.limiter() == 50
        steered.run.end.interrupt()

    collect(bench, clock, script)
    assert "steering" not in json.loads((bench.folder / "rollouts.d/run.json").read_text())


def test_a_dry_run_says_what_it_would_change(bench: Bench, clock: VirtualTime) -> None:
    async def script(steered: Steered) -> None:
        await steered.at(100)
        asked_for = {"parallelism": 7, "stop": "now", "max_cost_usd": 3}
        found = await steered.control.steer(asked_for, "a test", is_dry=True)
        assert [str(change) for change in found] == [
            "parallelism: 50 → 7",
            "max_cost_usd: null → 3.0",
            "run: running → now",
        ]

    steered = collect(bench, clock, script)
    assert bench.keys() == KEYS and steered.control.changes == []


def test_a_socket_that_only_its_user_can_open(bench: Bench) -> None:
    def look(note: place.Note) -> tuple[int, int, JsonObject]:
        mode = note.socket.stat().st_mode & 0o777
        return place.folder().stat().st_mode & 0o777, mode, ask(note, {"history": True})

    folder, sock, reply = collect_outside(bench, look)
    assert (oct(folder), oct(sock)) == ("0o700", "0o600")
    assert reply["state"] == "running" and reply["snapshot"]["counts"]["planned"] == NUMBER
    assert reply["snapshot"]["output"] == str(bench.folder / "rollouts.jsonl")
    assert len(reply["history"][0]) == 8
    assert bench.keys() == KEYS and not list(place.folder().iterdir())


NOBODY = 65_534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@as_root
@pytest.mark.parametrize("is_open", [False, True])
def test_another_user_cannot_steer(
    bench: Bench, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder keeps others out; and were it open, the socket knows its user."""
    if is_open:
        state = tempfile.mkdtemp()
        monkeypatch.setenv("XDG_STATE_HOME", state)
    sock = socket.socket(socket.AF_UNIX)
    refused: list[bool] = []

    def connect(note: place.Note) -> None:
        """As the other user, who is this whole process for a moment."""
        with place.address_of(note.socket) as address:
            if is_open:
                open_to_all(note.socket, Path(state))
            os.seteuid(NOBODY)
            try:
                sock.connect(address)
            except PermissionError:
                refused.append(True)
            finally:
                os.seteuid(0)

    def steer(note: place.Note) -> str:
        if refused:
            return ""
        with suppress(OSError):
            sock.sendall(encode({"steer": {"stop": "now"}}))
        return sock.recv(1000).decode()

    with sock:
        said = collect_outside(bench, steer, connect=connect)
    if is_open:
        shutil.rmtree(state)
    assert ("another user's" in said) if is_open else refused
    assert bench.keys() == KEYS


def open_to_all(path: Path, top: Path) -> None:
    path.chmod(0o666)
    for folder in path.parents:
        folder.chmod(0o755)
        if folder == top:
            return


def test_two_that_steer_at_once_are_both_recorded(bench: Bench) -> None:
    def steer(note: place.Note) -> None:
        def turn(number: int) -> Any:
            return ask(note, {"steer": {"parallelism": number}, "from": f"tool {number}"})

        with ThreadPoolExecutor(20) as pool:
            replies = list(pool.map(turn, range(101, 121)))
        assert all(len(reply["changes"]) == 1 for reply in replies)

    collect_outside(bench, steer)
    noted = json.loads((bench.folder / "rollouts.d/run.json").read_text())["steering"]
    assert sorted(each["new"] for each in noted) == list(range(101, 121))
    assert [each["old"] for each in noted] == [50, *(each["new"] for each in noted[:-1])]
    assert all(f"tool {each['new']}, pid {os.getpid()}" in each["by"] for each in noted)
    assert bench.keys() == KEYS


def test_steering_over_the_socket_reaches_the_run(bench: Bench) -> None:
    def steer(note: place.Note) -> list[str]:
        ask(note, {"steer": {"paused": True, "max_cost_usd": 7}})
        with pytest.raises(ConfigError, match="paralel: there is no such knob"):
            ask(note, {"steer": {"paralel": 3}})
        with pytest.raises(ConfigError, match="a request is a JSON object"):
            ask(note, [])
        reply = ask(note, {"steer": {"paused": False}, "dry_run": True})
        assert reply["state"] in ("pausing", "paused") and reply["dry_run"]
        reply = ask(note, {"steer": {"paused": False}})
        return [each["what"] for each in reply["changes"]]

    assert collect_outside(bench, steer) == ["paused"]
    assert bench.keys() == KEYS


def test_a_hundred_pollers_cause_no_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def poll(note: place.Note) -> set[int]:
        return {ask(note, {})["snapshot"]["number"] for _ in range(100)}

    taken: list[bool] = []
    take = Watcher._take

    def count(self: Watcher, *, is_over: bool = False) -> Snapshot:
        taken.append(is_over)
        return take(self, is_over=is_over)

    monkeypatch.setattr(Watcher, "_take", count)
    monkeypatch.setattr(watcher, "EVERY_S", 1e6)  # the run's own clock takes no further one
    assert collect_outside(bench, poll) == {1}
    assert taken == [False, True], "one snapshot as the run begins, and one as it ends"


def test_what_a_killed_collection_left_is_named_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_folder()
    output = tmp_path / "rollouts.jsonl"
    pid = ended_process()
    for run_id in ("abc", "abd"):
        one = place.Note(run_id, pid, socket.gethostname(), str(output), "2026")
        with socket.socket(socket.AF_UNIX) as sock, place.address_of(one.socket) as address:
            sock.bind(address)
        place.write_note(one)
    reused = place.Note("abc", os.getpid(), socket.gethostname(), str(output), "2026")
    monkeypatch.setattr(client, "ENDING_S", 0)
    with pytest.raises(ConfigError, match=rf"the collection into {output} was killed \(pid "):
        ask(reused, {})
    with pytest.raises(ConfigError, match=r"was killed .* start its command again"):
        client.choose(str(output), "")
    with pytest.raises(ConfigError, match=r"no collection into .* runs on this machine"):
        client.choose(str(output), "")
    assert not list(place.folder().iterdir())
    with pytest.raises(ConfigError, match="no collection runs on this machine"):
        client.choose("", "")


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_one_that_does_not_answer_and_several_at_once() -> None:
    place.make_folder()
    notes = [
        place.Note(run_id, os.getpid(), socket.gethostname(), f"/x/{run_id}.jsonl", run_id)
        for run_id in ("first", "second")
    ]
    with socket.socket(socket.AF_UNIX) as sock:
        with place.address_of(notes[0].socket) as address:
            sock.bind(address)
        sock.listen()
        for note in notes:
            place.write_note(note)
        with pytest.raises(ConfigError, match=r"first.jsonl does not answer within 0.01 s \(pid"):
            ask(notes[0], {}, timeout_s=0.01)
        with pytest.raises(ConfigError, match="has just ended"):
            ask(notes[1], {})
        with pytest.raises(ConfigError, match=r"2 collections run; say which one:\n  \+run_id=fir"):
            client.choose("", "")
        assert client.choose("", "sec") == notes[1]
        assert client.choose("/x/first.jsonl", "") == notes[0]


def test_a_long_path_gets_a_socket_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("long" * 40)))
    bench = Bench(tmp_path)
    assert collect_outside(bench, lambda note: ask(note, {})["state"], 100) == "running"


def test_the_command_steers_and_lists(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    def say(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            ctl(list(words))
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    def steer(note: place.Note) -> list[tuple[int, str]]:
        return [
            say("parallelism=64"),
            say("parallelism=64"),
            say("pause", "+wait=false"),
            say("resume", "+dry_run=true"),
            say("resume", "max_cost_usd=5", f"+run_id={note.run_id}"),
            say("max_cost_usd=null", f"+output_jsonl_fpath={note.output}"),
            say("cancel=nothing:0", "+drop=true"),
            say("+json=true"),
            say(),
        ]

    said = collect_outside(bench, steer)
    assert [status for status, _ in said] == [0, 0, 0, 0, 0, 0, 1, 0, 0]
    texts = [text for _, text in said]
    assert texts[0] == "parallelism: 50 → 64\nrunning\n"
    assert texts[1] == "nothing changes: it is so already\nrunning\n"
    assert texts[2].startswith("paused: false → true\npaus")
    assert texts[3].startswith("would change  paused: true → false\npaus")
    assert texts[4] == "paused: true → false\nmax_cost_usd: null → 5.0\nrunning\n"
    assert texts[5] == "max_cost_usd: 5.0 → null\nrunning\n"
    assert texts[6].startswith("error: cancel: nothing:0 is not in flight")
    [listed] = json.loads(texts[7])["collections"]
    assert listed["output"] == str(bench.folder / "rollouts.jsonl")
    assert texts[8].splitlines()[0].startswith("run_id        state")
    assert f"/{NUMBER:,}" in texts[8] and "rollouts.jsonl" in texts[8]
    assert bench.keys() == KEYS


@pytest.mark.parametrize(("how", "said"), [("drain", "may finish"), ("now", "are cancelled")])
def test_a_stop_says_what_becomes_of_what_is_in_flight(how: str, said: str) -> None:
    change = {"at": "", "by": "a test", "what": "run", "old": "running", "new": how}
    reply = {"changes": [change], "dry_run": False, "state": "stopping"}
    shown = format_changes({**reply, "snapshot": {"counts": {"in_flight": 3}}})
    assert shown.endswith(f"\nstopping: 3 in flight {said}")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["puase"], "puase: expected pause, resume, stop, or a key with its value (did you mean"),
        (["paralelism=4"], "unknown key 'paralelism' on the command line (did you mean"),
        (["xyz=4"], "unknown key 'xyz' on the command line; --help lists the keys"),
        (["parallelism=0"], "parallelism=0: must be at least 1, got 0"),
        (["+now=true"], "now: it needs stop"),
        (["pause"], "no collection runs on this machine"),
    ],
)
def test_a_wrong_command_is_one_line(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl(words)
    said = capsys.readouterr().err
    assert ended.value.code == 1 and problem in said and said.count("\n") == 1
