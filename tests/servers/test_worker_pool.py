import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import HANG_S, alive, eventually

from rollout_kit.serving.workers.pool import WorkerDied, WorkerError, WorkerPool

WORK = """
import os, signal, time
calls = 0

def work(name, *arguments):
    return globals()[name](*arguments)

def add(a, b): return a + b
def echo(value): return value
def pid(): return os.getpid()
def hang():
    while True: pass
def hold(path): open(path, "w").write(str(os.getpid())); hang()
def begin(path, seconds): open(path, "w").close(); time.sleep(seconds); return seconds
def fail(): raise ValueError("no such number")
def leave(): os._exit(3)
def talk():
    print("this is not the protocol", flush=True)
    return "quiet"
def count():
    global calls
    calls += 1
    return calls
def unserialisable(): return object()
def hog(): return len(bytearray(4 << 30))
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def descend(): return descend()
def interrupted(): os.kill(os.getpid(), signal.SIGINT); return "still here"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work.py"
    path.write_text(WORK)
    return path


def in_pool(file: Path, body, **options):
    options = {"deadline_s": HANG_S, **options}

    async def run():
        async with WorkerPool(file, "work", **options) as pool:
            return await body(pool)

    return asyncio.run(run())


def test_a_call_returns_what_the_function_returns(file):
    async def body(pool):
        return [await pool.call("add", 2, 3), await pool.call("echo", {"ü": [1, None]})]

    assert in_pool(file, body) == [5, {"ü": [1, None]}]


def test_a_worker_stays_warm_between_calls(file):
    async def body(pool):
        return [await pool.call("count") for _ in range(3)]

    assert in_pool(file, body) == [1, 2, 3]


def test_large_arguments_and_results_pass(file):
    text = "x" * 5_000_000

    async def body(pool):
        return await pool.call("echo", text)

    assert in_pool(file, body) == text


def test_an_exception_keeps_its_type_and_message_and_the_worker_goes_on(file):
    async def body(pool):
        before = await pool.call("pid")
        with pytest.raises(WorkerError, match="ValueError: no such number") as caught:
            await pool.call("fail")
        assert (caught.value.kind, caught.value.message) == ("ValueError", "no such number")
        assert await pool.call("pid") == before

    in_pool(file, body)


def test_a_result_that_is_not_json_is_the_callers_error(file):
    async def body(pool):
        with pytest.raises(WorkerError, match="TypeError"):
            await pool.call("unserialisable")
        assert await pool.call("add", 1, 1) == 2

    in_pool(file, body)


def test_a_hanging_call_is_killed_at_its_deadline_and_the_next_one_works(file):
    async def body(pool):
        hung = await pool.call("pid")
        pool.deadline_s = 0.3
        with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
            await pool.call("hang")
        assert not alive(hung)
        pool.deadline_s = HANG_S
        assert await pool.call("add", 1, 2) == 3

    in_pool(file, body)


def test_a_worker_that_dies_is_replaced(file):
    async def body(pool):
        with pytest.raises(WorkerDied, match="exit status 3"):
            await pool.call("leave")
        os.kill(await pool.call("pid"), signal.SIGKILL)
        assert await pool.call("add", 1, 2) == 3

    in_pool(file, body)


@pytest.mark.parametrize("name", ["crash", "hog", "descend"])
def test_arguments_that_are_too_much_for_a_worker_are_a_timeout(file, name):
    async def body(pool):
        with pytest.raises(TimeoutError, match="the worker could not answer"):
            await pool.call(name)
        assert await pool.call("add", 1, 2) == 3

    in_pool(file, body, max_memory_mb=1024)


def test_a_cancelled_call_does_not_leave_its_answer_to_the_next(file, tmp_path):
    begun = tmp_path / "begun"

    async def body(pool):
        call = asyncio.create_task(pool.call("begin", str(begun), 0.3))
        while not begun.exists():  # noqa: ASYNC110  a worker's doing
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await pool.call("echo", "mine") == "mine"

    in_pool(file, body)


def test_many_calls_at_once_share_the_workers(file):
    async def body(pool):
        results = await asyncio.gather(*(pool.call("add", n, n) for n in range(300)))
        assert results == [2 * n for n in range(300)]
        pids = await asyncio.gather(*(pool.call("pid") for _ in range(50)))
        assert len(set(pids)) <= 2

    in_pool(file, body, num_workers=2)


def test_the_event_loop_runs_on_while_workers_work(file):
    async def body(pool):
        hanging = asyncio.create_task(pool.call("hang"))
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert not hanging.done()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging

    in_pool(file, body)


def test_what_the_function_prints_does_not_disturb_the_protocol(file):
    async def body(pool):
        return await pool.call("talk")

    assert in_pool(file, body) == "quiet"


def test_a_worker_ignores_an_interrupt(file):
    async def body(pool):
        return await pool.call("interrupted")

    assert in_pool(file, body) == "still here"


def test_a_file_that_cannot_be_loaded_says_so_at_the_start(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import no_such_library_at_all")

    async def body(pool):
        raise AssertionError("started")

    with pytest.raises(WorkerError, match=r"ModuleNotFoundError: .*no_such_library_at_all"):
        in_pool(path, body)


def test_another_worker_starts_only_if_a_call_has_to_wait_for_long(file, tmp_path, monkeypatch):
    held = tmp_path / "held"

    async def body(pool):
        monkeypatch.setattr(pool._workers, "_patience_s", HANG_S)
        first = set(await asyncio.gather(*(pool.call("pid") for _ in range(20))))
        monkeypatch.setattr(pool._workers, "_patience_s", 0.01)
        holding = asyncio.create_task(pool.call("hold", str(held)))
        await pids_in([held])
        second = await pool.call("pid")
        holding.cancel()
        return first, second

    first, second = in_pool(file, body, num_workers=2)
    assert len(first) == 1
    assert second not in first


def test_close_ends_every_worker(file, tmp_path):
    held = [tmp_path / name for name in "ab"]

    async def run():
        pool = WorkerPool(file, "work", num_workers=3, deadline_s=HANG_S)
        await pool.start()
        calls = [asyncio.create_task(pool.call("hold", str(path))) for path in held]
        pids = {*await pids_in(held), await pool.call("pid")}
        assert len(pids) == 3
        await pool.close()
        assert [type(each) for each in await asyncio.gather(*calls, return_exceptions=True)] == [
            WorkerDied,
            WorkerDied,
        ]
        return pids

    assert not any(alive(pid) for pid in asyncio.run(run()))


async def pids_in(paths: list[Path]) -> list[int]:
    """The ids that processes write into the files, once all are there."""
    while not all(path.exists() and path.read_text() for path in paths):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return [int(path.read_text()) for path in paths]


def test_workers_end_with_a_parent_that_is_killed_in_the_midst_of_work(file, tmp_path):
    begun = tmp_path / "begun"
    script = f"""
        import asyncio
        from pathlib import Path
        from rollout_kit.serving.workers.pool import WorkerPool

        async def run():
            pool = WorkerPool(Path({str(file)!r}), "work", deadline_s={HANG_S})
            await pool.start()
            print(await pool.call("pid"), flush=True)
            await pool.call("begin", {str(begun)!r}, {HANG_S})

        asyncio.run(run())
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout
        worker = int(parent.stdout.readline())
        eventually(begun.exists)
        assert alive(worker)
        parent.kill()
    eventually(lambda: not alive(worker))
