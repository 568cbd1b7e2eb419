"""What an unkind world does to a collection: each case once lost a response, hung or crashed."""

import asyncio
import json
import os
import shutil
import threading
from collections import Counter
from typing import Any

import pytest
from support import HANG_S, Bench, Echo, EchoRequest, asked, read_jsonl, row, write_jsonl
from virtual_time import run_virtual_once

from rollout_kit.analysis.view.dataset import find_outputs
from rollout_kit.api.testing import ScriptedModel, call_response, making, mount, run_virtual
from rollout_kit.collecting.cluster.merging.merge import expand
from rollout_kit.errors import (
    ConfigError,
    ModelError,
    OutputError,
    SessionLost,
    StopRun,
    VerifyError,
)
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.sockets import bound_socket
from rollout_kit.store.outputs import files_of
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

ROWS = [row(f"q{number}") for number in range(5)]


def verifying(raises: Any = None, returns: Any = None) -> Any:
    """A resources server whose verify raises or returns what is given."""

    class Verifier(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if raises is not None:
                raise raises
            return body.scored(**returns)

    Verifier._verify_request = EchoRequest
    return making(Verifier)


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), RecursionError("deep"), asyncio.CancelledError("own")],
)
def test_a_verifier_that_exits_is_one_rollout_s_failure(bench: Bench, error: BaseException) -> None:
    bench.verifier = verifying(raises=error)
    assert run_virtual(bench.collect(ROWS)) == 2
    assert len(bench.lines("unverified")) == 5
    assert type(error).__name__ in bench.lines("failures")[0]["failure"]["message"]


def test_a_score_that_is_no_json_is_one_rollout_s_failure(bench: Bench) -> None:
    bench.verifier = verifying(returns={"reward": 1.0, "said": "\ud800"})
    assert run_virtual(bench.collect(ROWS)) == 2
    assert len(bench.lines("failures")) == 5


def test_a_verifier_cannot_change_what_a_rollout_is(bench: Bench) -> None:
    scores = {"reward": 1.0, "agent_ref": {"name": "x"}, "_ng_rollout_index": 7, "rollout": 1}
    bench.verifier = verifying(returns=scores)
    assert run_virtual(bench.collect(ROWS)) == 0
    assert run_virtual(bench.collect()) == 0
    assert len(bench.lines()) == len(bench.model.calls) == 5


def test_rewards_of_any_size_are_summed_up(bench: Bench) -> None:
    bench.verifier = verifying(returns={"reward": 1e200})
    assert run_virtual(bench.collect(ROWS, num_repeats=2)) == 0
    assert run_virtual(bench.collect(num_repeats=2)) == 0
    metrics = bench.metrics()
    assert metrics["reward"] == pytest.approx(1e200)
    assert metrics["agents"][0]["agent_metrics"]["std/reward"] is None


def test_a_row_s_own_task_index_counts_only_where_it_is_a_number(bench: Bench) -> None:
    rows = [row("a", _ng_task_index="x"), row("b", _ng_task_index=None), row("c", _ng_task_index=9)]
    assert run_virtual(bench.collect(rows)) == 0
    assert sorted(line["_ng_task_index"] for line in bench.lines()) == [0, 1, 9]


def test_responses_in_hand_survive_the_run_s_sudden_end(bench: Bench) -> None:
    """Three verdicts are out and not yet slow when the set-up turns out to be wrong."""

    def answer(params: JsonObject) -> str:
        if asked(params) == "refused":
            raise ModelError("no such model", status=404, server="policy_model")
        return asked(params)

    class Slow(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            await asyncio.sleep(30)
            return body.scored(1.0)

    Slow._verify_request = EchoRequest
    bench.verifier = making(Slow)
    bench.model = ScriptedModel(answer, delay_s=1)
    rows = [*ROWS[:3], *(row("refused", extra=number) for number in range(8))]
    with pytest.raises(StopRun, match="no such model"):
        run_virtual(bench.collect(rows, park_after_s=100, num_samples_in_parallel=20))
    assert len(bench.lines("unverified")) == 3
    bench.verifier = making(Echo)
    run_virtual(bench.collect(ROWS[:3]))
    assert len(bench.lines()) == 3 and len(bench.model.calls) == 11


def test_one_refused_row_does_not_stop_a_run_that_worked_before(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS[:2]))

    def answer(params: JsonObject) -> str:
        if asked(params) == "q2":
            raise ModelError("not this one", status=403, server="policy_model")
        return asked(params)

    bench.model = ScriptedModel(answer)
    assert run_virtual(bench.collect(ROWS, num_samples_in_parallel=1)) == 2
    assert len(bench.lines()) == 4


class Stepper(ResourcesServer):
    """Its verdict needs the state of the session, which a replay can bring back."""

    reverify = "replay"
    failing = True

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = []
        return {}

    @tool
    async def step(self, by: int) -> str:
        self.state.append(by)
        return "ok"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        if Stepper.failing:
            raise RuntimeError("down")
        return body.scored(float(sum(self.state)))


def test_a_replay_repeats_just_the_calls_that_were_made(bench: Bench) -> None:
    calls = [("step", '{"by": 2}'), ("step", "{bad"), ("close_session", "{}"), ("step", "[1]")]

    def answer(params: JsonObject) -> Any:
        return call_response(*calls) if len(params["input"]) == 1 else "done"

    bench.model = ScriptedModel(answer)
    bench.verifier = making(Stepper)
    Stepper.failing = True
    assert run_virtual(bench.collect(ROWS[:1])) == 2
    Stepper.failing = False
    assert run_virtual(bench.collect()) == 0
    assert [line["reward"] for line in bench.lines()] == [2.0]
    assert len(bench.model.calls) == 2


def test_a_plain_verifier_that_hangs_holds_up_nobody_and_not_the_end(bench: Bench) -> None:
    class Hanging(ResourcesServer):
        def verify(self, task: JsonObject, response: JsonObject) -> float:
            if task["expected"].startswith("hang"):
                ended.wait()
            return 1.0

    ended = threading.Event()

    bench.verifier = making(Hanging)
    rows = [row(f"hang{number}") for number in range(70)] + ROWS
    collecting = bench.collect(rows, num_samples_in_parallel=100, verify_timeout_s=10 * HANG_S)
    try:
        assert run_virtual_once(lambda: len(bench.lines()) == len(ROWS), collecting) == 2
    finally:
        ended.set()
    assert len(bench.lines()) == 5 and len(bench.lines("unverified")) == 70


def test_a_pause_never_outlasts_the_rollout_and_the_real_error_is_told(bench: Bench) -> None:
    def answer(params: JsonObject) -> str:
        raise ModelError("slow down", status=429, retry_after_s=86_400)

    bench.model = ScriptedModel(answer)

    async def timed() -> float:
        assert await bench.collect(ROWS[:1]) == 2
        return asyncio.get_running_loop().time()

    assert run_virtual(timed()) < 100
    assert bench.lines("failures")[0]["failure"]["status"] == 429


def test_a_session_lost_after_parking_waits_for_the_next_run(bench: Bench) -> None:
    class Losing(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            await asyncio.sleep(5)
            raise SessionLost("gone")

    Losing._verify_request = EchoRequest
    bench.verifier = making(Losing)
    peak = 0

    def answer(params: JsonObject) -> str:
        nonlocal peak
        peak = max(peak, bench.model.in_flight)
        return asked(params)

    bench.model = ScriptedModel(answer, delay_s=1)
    rows = [row(f"q{number}") for number in range(20)]
    assert run_virtual(bench.collect(rows, num_samples_in_parallel=4)) == 2
    assert peak <= 4
    counts = bench.metrics()["counts"]
    assert (counts["unverified"], counts["failed"], counts["rollouts"]) == (20, 0, 0)


@pytest.mark.parametrize("verify_s", [0, 5], ids=["in hand", "parked"])
@pytest.mark.parametrize(("reverify", "generations"), [("stateless", 1), ("never", 3)])
def test_a_session_lost_over_its_verdict_is_made_good_in_the_same_run(
    bench: Bench, verify_s: float, reverify: str, generations: int
) -> None:
    losses: Counter[str] = Counter()

    class Losing(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            await asyncio.sleep(verify_s)
            losses[body.expected] += 1
            if losses[body.expected] < 3:
                raise SessionLost("gone")
            return body.scored(1.0)

    Losing._verify_request = EchoRequest
    Losing.reverify = reverify  # type: ignore[assignment]
    bench.verifier = making(Losing)
    peak = 0

    def answer(params: JsonObject) -> str:
        nonlocal peak
        peak = max(peak, bench.model.in_flight)
        return asked(params)

    bench.model = ScriptedModel(answer, delay_s=1)
    rows = [row(f"q{number}") for number in range(20)]
    assert run_virtual(bench.collect(rows, num_samples_in_parallel=4)) == 0
    assert peak == 4
    assert Counter(map(asked, bench.model.calls)) == {f"q{n}": generations for n in range(20)}
    assert sorted(losses.values()) == [3] * 20 and len(bench.keys()) == 20
    assert bench.lines("unverified") == bench.lines("failures") == []
    regenerated = [line["rollout"].get("regenerated", False) for line in bench.lines()]
    assert regenerated == [reverify == "never" and verify_s > 0] * 20


def test_a_late_tool_cannot_reopen_a_closed_session() -> None:
    class Late(ResourcesServer):
        async def seed_session(self, body: JsonObject) -> JsonObject:
            await asyncio.sleep(1)
            self.state = {}
            return {}

        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            return body.scored(1.0)

    made: list[Late] = []

    def make(peers: Any, name: str) -> Late:
        made.append(Late(Late.Config(), peers, name))
        return made[0]

    async def main() -> None:
        from rollout_kit.session import Session, entered

        async with mount({"late": make}) as peers:
            with entered(Session()):
                task = {"responses_create_params": {}}
                seeding = asyncio.create_task(peers.call("late", "/seed_session", task, dict))
                await asyncio.sleep(0.1)
                await peers.call("late", "/close_session", {}, dict)
                with pytest.raises(SessionLost):
                    await seeding

    run_virtual(main())
    assert made[0].num_sessions == 0


def test_request_timeout_holds_in_the_process_too() -> None:
    from rollout_kit.errors import PeerTimeout
    from rollout_kit.serving.transport.peers import Local, Peers

    async def main() -> None:
        model = ScriptedModel(lambda params: "x", delay_s=100)
        peers = Peers({"model": Local(model, timeout_s=2)})
        with pytest.raises(PeerTimeout, match="within 2 s"):
            await peers.call("model", "/v1/responses", {"input": "x"}, dict)

    run_virtual(main())


def test_one_port_has_one_owner() -> None:
    with bound_socket("127.0.0.1", 0) as sock, pytest.raises(OSError, match="in use"):
        bound_socket("127.0.0.1", sock.getsockname()[1])


@pytest.mark.parametrize(
    "edit",
    [
        {"reward": "high"},
        {"usage": "x"},
        {"agent_ref": {}},
        {"rollout": {"task_id": "a", "rollout_index": 0, "scores": None}},
        {"rollout": {"task_id": "a", "rollout_index": 0, "duration_s": "1"}},
    ],
)
def test_a_line_that_somebody_edited_is_left_alone_and_collected_again(
    bench: Bench, edit: JsonObject
) -> None:
    run_virtual(bench.collect(ROWS[:1]))
    path = bench.folder / "rollouts.jsonl"
    edited = json.dumps({**bench.lines()[0], **edit}) + "\n"
    path.write_text(edited)
    (bench.folder / "rollouts.d/failures.jsonl").write_text('{"failure": "x", "line": "y"}\n')
    (bench.folder / "rollouts.d/run.json").write_text('{"settings": null, "inputs": 5}')
    assert run_virtual(bench.collect()) == 0
    assert path.read_text().startswith(edited) and len(bench.lines()) == 2
    assert "are no rollouts of this kind" in bench.out.getvalue()


def test_a_run_of_one_rollout_leaves_the_run_s_own_figures(bench: Bench) -> None:
    down = True

    class Flaky(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if down:
                raise RuntimeError("down")
            return body.scored(1.0)

    Flaky._verify_request = EchoRequest
    bench.verifier = making(Flaky)
    run_virtual(bench.collect(ROWS))
    before = bench.metrics()
    manifest = (bench.folder / "rollouts.d/run.json").read_text()
    down = False
    task_id = bench.lines("failures")[0]["rollout"]["task_id"]
    assert run_virtual(bench.collect(only=f"{task_id}:0")) == 0
    assert bench.metrics() == before
    assert (bench.folder / "rollouts.d/run.json").read_text() == manifest


def test_fresh_sets_sidecars_aside_even_where_there_is_no_main_file(bench: Bench) -> None:
    bench.verifier = verifying(raises=RuntimeError("down"))
    run_virtual(bench.collect(ROWS))
    assert not (bench.folder / "rollouts.jsonl").exists()
    bench.verifier = making(Echo)
    warmer = {"responses_create_params": {"temperature": 0.5}}
    with pytest.raises(OutputError):
        run_virtual(bench.collect(**warmer))
    assert run_virtual(bench.collect(**warmer, resume="fresh")) == 0
    assert len(bench.lines()) == 5 and bench.lines("failures") == []


def test_files_that_were_moved_aside_are_one_output_which_a_folder_leaves_out(
    bench: Bench,
) -> None:
    bench.verifier = verifying(raises=RuntimeError("down"))
    run_virtual(bench.collect(ROWS))
    bench.verifier = making(Echo)
    for _ in range(2):  # within one second
        run_virtual(bench.collect(resume="fresh"))
    assert len(bench.lines()) == 5
    moved = sorted(bench.folder.glob("rollouts.*.jsonl"))
    assert len(moved) == 1 and len(list(bench.folder.glob("rollouts.*.d/failures.jsonl"))) == 1
    here = [bench.folder / "rollouts.jsonl"]
    assert files_of([str(bench.folder)]) == expand([str(bench.folder / "roll*.jsonl")]) == here
    assert [shown for shown, _ in find_outputs([str(bench.folder)])] == ["rollouts.jsonl"]
    [old] = moved
    assert files_of([str(old)]) == expand([str(old)]) == [old]
    here[0].rename(bench.folder / "kept.jsonl")
    shutil.rmtree(bench.folder / "rollouts.d")
    assert old in files_of([str(bench.folder)])


def test_what_is_skipped_lets_others_have_their_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.store.tasks.BREATH", 2)
    rows = [row(f"q{number}") for number in range(30)]
    run_virtual(bench.collect(rows, limit=25))
    assert run_virtual(bench.collect()) == 0
    assert len(bench.lines()) == 30


def test_other_settings_of_one_agent_leave_the_other_s_rollouts_done(bench: Bench) -> None:
    from support import config_of

    from rollout_kit.commands.collect_rollouts import collect_through
    from rollout_kit.commands.progress import Progress
    from rollout_kit.launch.reach import Servers

    rows = [{**row(f"q{n}"), "agent_ref": {"name": f"a{n % 2}"}} for n in range(6)]
    write_jsonl(bench.folder / "tasks.jsonl", rows)
    agent = registry.load("responses_api_agents", "simple_agent")
    wiring = {"resources_server": {"name": "echo"}, "model_server": {"name": "policy_model"}}

    async def collect(steps: int, **keys: Any) -> int:
        servers = {
            "policy_model": lambda peers, name: bench.model,
            "echo": making(Echo),
            "a0": making(agent, **wiring),
            "a1": making(agent, **wiring, max_steps=steps),
        }
        async with mount(servers) as peers:
            reached = Servers(peers, ["a0", "a1"], {}, {})
            progress = Progress(out=bench.out, err=bench.out)
            return await collect_through(reached, config_of(bench.folder, **keys), [], progress)

    assert run_virtual(collect(4)) == 0
    assert run_virtual(collect(5, resume="append")) == 0
    assert len(bench.model.calls) == 6 + 3


def test_a_parked_response_that_is_refused_for_good_is_not_verified_again(bench: Bench) -> None:
    class Refusing(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            await asyncio.sleep(5)
            raise VerifyError("no rule for this", status=422)

    Refusing._verify_request = EchoRequest
    bench.verifier = making(Refusing)
    assert run_virtual(bench.collect(ROWS[:1])) == 2
    assert run_virtual(bench.collect()) == 2
    assert len(bench.lines("failures")) == len(bench.model.calls) == 1
    assert "1 failed permanently" in bench.out.getvalue()
    task_id = bench.lines("failures")[0]["rollout"]["task_id"]
    bench.verifier = making(Echo)
    assert run_virtual(bench.collect(only=f"{task_id}:0")) == 0
    assert len(bench.model.calls) == 1


def test_a_plain_verifier_that_finds_nothing_says_so_at_once(bench: Bench) -> None:
    class Searching(ResourcesServer):
        def verify(self, task: JsonObject, response: JsonObject) -> float:
            return next(each for each in [1.0] if each > 2)

    bench.verifier = making(Searching)
    assert asyncio.run(bench.collect(ROWS[:1], verify_timeout_s=20)) == 2
    assert "StopIteration" in bench.lines("failures")[0]["failure"]["message"]


def test_only_files_that_a_run_made_itself_are_removed(bench: Bench) -> None:
    (bench.folder / "elsewhere").mkdir()
    target = bench.folder / "elsewhere/rollouts.jsonl"
    target.touch()
    (bench.folder / "rollouts.jsonl").symlink_to(target)
    assert run_virtual(bench.collect(ROWS, dry_run=True)) == 0
    assert (bench.folder / "rollouts.jsonl").is_symlink() and target.exists()
    assert run_virtual(bench.collect()) == 0
    assert len(target.read_text().splitlines()) == 5


def test_an_output_that_is_no_file_is_refused(bench: Bench) -> None:
    os.mkfifo(bench.folder / "pipe.jsonl")
    with pytest.raises(OutputError, match="not a regular file"):
        run_virtual(bench.collect(ROWS, output_jsonl_fpath=bench.folder / "pipe.jsonl"))
    assert (bench.folder / "pipe.jsonl").exists()
    run_virtual(bench.collect(output_jsonl_fpath=bench.folder / "pipe.jsonl", resume="fresh"))
    assert len(read_jsonl(bench.folder / "pipe.jsonl")) == 5


@pytest.mark.parametrize("content", ["[1]", "\ufeff{}", '{"a": 1}\n{"b": 2}\n'])
def test_a_refused_collection_leaves_no_file_behind(bench: Bench, content: str) -> None:
    (bench.folder / "rollouts.jsonl").write_text(content)
    write_jsonl(bench.folder / "tasks.jsonl", ROWS)
    before = sorted(bench.folder.iterdir())
    with pytest.raises(OutputError):
        run_virtual(bench.collect())
    assert sorted(bench.folder.iterdir()) == before
    assert run_virtual(bench.collect(dry_run=True, resume="fresh")) == 0
    assert sorted(bench.folder.iterdir()) == before
    assert "5 to collect" in bench.out.getvalue()


def test_a_dry_run_of_starting_over_moves_nothing(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS))
    before = sorted(path.name for path in bench.folder.iterdir())
    assert run_virtual(bench.collect(dry_run=True, resume="fresh")) == 0
    assert "5 to collect" in bench.out.getvalue()
    assert sorted(path.name for path in bench.folder.iterdir()) == before


def test_an_error_of_odd_types_on_the_wire_is_still_an_error() -> None:
    from rollout_kit.errors import from_wire

    odd = {
        "type": "ModelError",
        "message": 5,
        "status": "x",
        "retry_after_s": "soon",
        "server": None,
    }
    error = from_wire("model", 503, {"error": odd}, "")
    assert (error.status, error.retry_after_s, error.server) == (503, None, "model")


def test_a_verifier_may_return_scalars_of_numpy_s(bench: Bench) -> None:
    import numpy as np

    class Numbers(ResourcesServer):
        def verify(self, task: JsonObject, response: JsonObject) -> JsonObject:
            return {"reward": np.float32(1), "share": np.float64(0.5), "hits": np.array(3)}

    bench.verifier = making(Numbers)
    assert collected_for_real(bench) == 0
    [line] = bench.lines()
    assert (line["reward"], line["share"], line["hits"]) == (1.0, 0.5, 3)


def collected_for_real(bench: Bench) -> int:
    """A plain `def verify` answers from a thread, which a virtual clock does not wait for."""
    return asyncio.run(bench.collect(ROWS[:1]))


def test_an_output_that_would_only_be_called_an_archive_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"leave out \.zst"):
        asyncio.run(bench.collect(ROWS[:1], output_jsonl_fpath=bench.folder / "r.jsonl.zst"))
