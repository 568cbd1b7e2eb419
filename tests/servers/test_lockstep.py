"""Work on replies goes on together, step by step."""

import asyncio
import itertools
from typing import Any

import pytest
from support import Bench, asked, row

from rollout_kit.api.testing import run_virtual
from rollout_kit.serving.agent import Turns
from rollout_kit.serving.transport.loop import MAX_TOGETHER, MAX_TURNS, Lockstep, step
from rollout_kit.types import JsonObject


class Works:
    """Pieces of work that begin with a reply and have three steps."""

    def __init__(self) -> None:
        self.lockstep = Lockstep[str]()
        self.done: list[str] = []
        self.waiters: list[asyncio.Future[str]] = []

    def begin(self) -> "asyncio.Task[None]":
        self.waiters.append(waiter := asyncio.get_running_loop().create_future())
        return asyncio.create_task(self.work(waiter))

    async def work(self, waiter: "asyncio.Future[str]") -> None:
        name = await waiter
        for number in range(3):
            self.done.append(f"{name}{number}")
            await step

    def answer(self, name: str) -> None:
        self.lockstep.settle(self.waiters.pop(0), name)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_each_step_is_taken_by_all_before_the_next() -> None:
    async def main() -> str:
        works = Works()
        tasks = [works.begin() for _ in "abc"]
        for name in "abc":
            works.answer(name)
            await turns(1)
        await asyncio.gather(*tasks)
        return " ".join(works.done)

    assert run_virtual(main()) == "a0 b0 c0 a1 b1 c1 a2 b2 c2"


def test_a_reply_that_comes_during_the_work_on_others_waits_for_its_end() -> None:
    async def main() -> str:
        works = Works()
        tasks = [works.begin() for _ in "abc"]
        works.answer("a")
        while not works.done:
            await turns(1)
        works.answer("b")
        works.answer("c")
        await asyncio.gather(*tasks)
        return " ".join(works.done)

    assert run_virtual(main()) == "a0 a1 a2 b0 c0 b1 c1 b2 c2"


def test_a_reply_does_not_wait_for_work_without_end() -> None:
    async def main() -> None:
        async def work_on() -> None:
            while True:
                await step

        works, endless = Works(), asyncio.create_task(work_on())
        task = works.begin()
        works.answer("a")
        await turns(MAX_TURNS + 5)
        assert task.done()
        endless.cancel()

    run_virtual(main())


def test_a_full_group_does_not_wait() -> None:
    async def main() -> None:
        works = Works()
        tasks = [works.begin() for _ in range(MAX_TOGETHER)]
        for _ in range(MAX_TOGETHER):
            works.answer("a")
        await turns(2)
        assert len(works.done) == MAX_TOGETHER
        await asyncio.gather(*tasks)

    run_virtual(main())


def test_who_has_stopped_waiting_stops_nobody_else() -> None:
    async def main() -> list[str]:
        works = Works()
        left, stays = works.begin(), works.begin()
        works.answer("left")
        works.answer("stays")
        left.cancel()
        await stays
        assert left.cancelled()
        return works.done

    assert run_virtual(main()) == ["stays0", "stays1", "stays2"]


@pytest.mark.parametrize("after", range(1, 6))
def test_a_rollout_that_is_cancelled_once_it_has_its_response_keeps_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """`after` turns of the loop since the agent had the response."""
    finish, responses = Turns.finish, itertools.count()

    def finish_and_cancel(self: Turns, *given: Any) -> JsonObject:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel_after(left: int) -> None:
            if left:
                loop.call_soon(cancel_after, left - 1)
            else:
                task.cancel()

        if next(responses) == 1:
            cancel_after(after)
        return finish(self, *given)

    monkeypatch.setattr(Turns, "finish", finish_and_cancel)
    run_virtual(bench.collect([row("a"), row("b"), row("c")]))
    kept = [*bench.lines(), *bench.lines("unverified")]
    found = {asked(each["responses_create_params"]) for each in kept}
    assert found == {"a", "b", "c"} and len(kept) == 3
    monkeypatch.undo()
    run_virtual(bench.collect())
    assert bench.keys() == [("a", 0), ("b", 0), ("c", 0)]
    assert len(bench.model.calls) == 3
