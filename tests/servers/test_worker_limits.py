"""CPU time decides a verdict; the clock decides none, however busy the machine is."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest
from support import HANG_S, Desk, alive, limit_only, row

from rollout_kit.api.testing import making
from rollout_kit.errors import VerifyError
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving.registry import load
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.serving.workers.pool import WorkerPool
from rollout_kit.session import Session, entered
from rollout_kit.types import VerifyRequest, VerifyResponse

WORK = """
import os, re, subprocess, sys, threading, time

def work(name, *arguments):
    return globals()[name](*arguments)

def pid(): return os.getpid()
def burn():
    while True: pass
def burn_in_c(): re.fullmatch("(a|a)*b", "a" * 60)
def burn_in_threads():
    for _ in range(2): threading.Thread(target=burn, daemon=True).start()
    time.sleep(10**6)
def burn_in_a_result(): return [[0] * 10**6] * 10**5
def burn_a_little(cpu_s):
    until = time.process_time() + cpu_s
    while time.process_time() < until: pass
    return "done"
def burn_in_another_process(cpu_s):
    code = f"import time\\nwhile time.process_time() < {cpu_s}: pass"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    return "done"
def wait(seconds): time.sleep(seconds); return "done"
def begin(path):
    open(path, "w").write(str(os.getpid()))
    while os.path.exists(path): time.sleep(0.01)
    return "done"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(WORK)
    return path


def in_pool(file: Path, body: Any, **limits: Any) -> Any:
    async def run() -> Any:
        async with WorkerPool(file, "work", **{"wall_deadline_s": HANG_S, **limits}) as pool:
            return await body(pool)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["burn", "burn_in_c", "burn_in_threads", "burn_in_a_result"])
def test_a_call_that_uses_up_its_cpu_time_is_a_timeout(file: Path, name: str) -> None:
    async def body(pool: WorkerPool) -> None:
        before = await pool.call("pid")
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s of CPU time"):
            await pool.call(name)
        assert not alive(before)
        assert await pool.call("wait", 0) == "done"

    in_pool(file, body, deadline_s=0.2)


def test_each_call_has_the_whole_cpu_time(file: Path) -> None:
    async def body(pool: WorkerPool) -> list[str]:
        return [await pool.call("burn_a_little", 0.15) for _ in range(6)]

    assert in_pool(file, body, deadline_s=0.6) == ["done"] * 6


def test_what_other_processes_compute_for_a_call_does_not_count(file: Path) -> None:
    async def body(pool: WorkerPool) -> str:
        return await pool.call("burn_in_another_process", 0.6)

    assert in_pool(file, body, deadline_s=0.4) == "done"


def test_a_call_that_waits_is_an_error_and_its_worker_is_replaced(file: Path) -> None:
    async def body(pool: WorkerPool) -> None:
        before = await pool.call("pid")
        pool.wall_deadline_s = 0.2
        with pytest.raises(VerifyError, match=r"within 0\.2 s.*ng_reverify asks again") as caught:
            await pool.call("wait", 10**6)
        assert not caught.value.retryable and not caught.value.terminal
        assert not alive(before)
        pool.wall_deadline_s = HANG_S
        assert await pool.call("wait", 0) == "done"

    in_pool(file, body)


def test_a_worker_that_stood_still_gives_its_answer_later(file: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def body(pool: WorkerPool) -> str:
        call = asyncio.create_task(pool.call("begin", str(begun)))
        while not (begun.exists() and begun.read_text()):  # noqa: ASYNC110  a worker's doing
            await asyncio.sleep(0.01)
        worker = int(begun.read_text())
        os.kill(worker, signal.SIGSTOP)
        begun.unlink()
        await asyncio.sleep(1)  # twice the limit
        assert not call.done()
        os.kill(worker, signal.SIGCONT)
        return await call

    assert in_pool(file, body, deadline_s=0.5) == "done"


def test_a_call_without_a_limit_may_compute(file: Path) -> None:
    async def body(pool: WorkerPool) -> str:
        return await pool.call("burn_a_little", 0.3)

    assert in_pool(file, body, deadline_s=None) == "done"


def test_the_wait_for_a_worker_counts_for_no_limit(file: Path) -> None:
    begun = file.with_name("begun")

    async def body(pool: WorkerPool) -> list[str]:
        holding = asyncio.create_task(pool.call("begin", str(begun)))
        while not begun.exists():  # noqa: ASYNC110  a worker's doing
            await asyncio.sleep(0.01)
        pool.wall_deadline_s = 0.1
        waiting = asyncio.create_task(pool.call("wait", 0))
        await asyncio.sleep(0.5)
        pool.wall_deadline_s = HANG_S
        begun.unlink()
        return [await holding, await waiting]

    assert in_pool(file, body, num_workers=1) == ["done"] * 2


def test_a_verdict_that_is_late_leaves_the_rollout_unverified(file: Path, tmp_path: Path) -> None:
    class Waiting(ResourcesServer):
        reverify = "stateless"
        seconds = 10**6

        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            async with WorkerPool(file, "work", wall_deadline_s=0.3) as pool:
                found = await pool.call("wait", self.seconds)
            return body.scored(reward=float(found == "done"))

    Waiting._verify_request = VerifyRequest
    desk = Desk(tmp_path)
    desk.verifier = making(Waiting)
    assert asyncio.run(desk.collect([row("q")])) == 2
    assert desk.lines() == []
    [unverified], [failed] = desk.lines("unverified"), desk.lines("failures")
    failure = failed["failure"]
    assert (failure["class"], failure["server"]) == ("VerifyError", "echo")
    assert "no answer within 0.3 s" in failure["message"]
    assert unverified["response"]["output"]
    Waiting.seconds = 0
    source = str(tmp_path / "rollouts.d/unverified.jsonl")
    assert asyncio.run(desk.reverify(input_jsonl_fpath=source)) == 0
    assert [line["reward"] for line in desk.new()] == [1.0]


SERVERS = {
    "structured_outputs": (
        {"schema_str": '{"type": "string", "pattern": "^(a|a)*$"}'},
        '"' + "a" * 60 + '!"',
    ),
    "instruction_following": (
        {
            "instruction_id_list": ["keywords:existence"],
            "kwargs": [{"keywords": ["(a|a)*b$"]}],
        },
        "a" * 60 + "!",
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_the_keys_of_a_verifier_set_both_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_only("a" * 60, monkeypatch)
    task, answer = SERVERS[name]
    task = {"responses_create_params": {"input": "?"}, **task}
    cls = load("resources_servers", name)

    async def verdict(**limits: float) -> VerifyResponse:
        server = cls(cls.Config(num_verify_workers=1, **limits), None, name)
        try:
            await server.start()
            with entered(Session()):
                await server.handle("/seed_session", orjson.dumps(task))
                response = make_response("m", [message_item(answer)], None)
                return await server.handle("/verify", orjson.dumps({**task, "response": response}))
        finally:
            await server.stop()

    late = verdict(verify_timeout_s=0.5, verify_wall_timeout_s=HANG_S)
    assert asyncio.run(late).reward == 0.0
    with pytest.raises(VerifyError, match=rf"{name}: no answer within 0\.5 s"):
        asyncio.run(verdict(verify_timeout_s=HANG_S, verify_wall_timeout_s=0.5))
