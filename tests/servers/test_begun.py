"""`Begun`: a coroutine up to its first wait, and its rest."""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from rollout_kit.api.testing import run_virtual
from rollout_kit.serving.transport.loop import Begun
from rollout_kit.time_limit import within

name: ContextVar[str] = ContextVar("name", default="outside")


async def wait(*pauses_s: float) -> str:
    for pause_s in pauses_s:
        await asyncio.sleep(pause_s)
    return "done"


def test_a_coroutine_without_a_wait_is_done_at_once() -> None:
    begun = Begun(wait())
    assert (begun.is_done, begun.error, begun.result) == (True, None, "done")


@pytest.mark.parametrize("pauses_s", [(), (0,), (1,), (0, 1, 0, 2)])
def test_awaiting_it_gives_the_result(pauses_s: tuple[float, ...]) -> None:
    async def main() -> tuple[bool, str, float]:
        begun = Begun(wait(*pauses_s))
        return begun.is_done, await begun, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (not pauses_s, "done", sum(pauses_s))


@pytest.mark.parametrize("pauses_s", [(), (0,), (1, 2)])
def test_awaiting_it_raises_its_error(pauses_s: tuple[float, ...]) -> None:
    async def fail() -> None:
        await wait(*pauses_s)
        raise KeyError("q")

    async def main() -> None:
        begun = Begun(fail())
        assert begun.is_done == (not pauses_s)
        with pytest.raises(KeyError):
            await begun

    run_virtual(main())


def test_a_time_limit_that_begins_after_it_reaches_it() -> None:
    ended: list[float] = []

    async def slow() -> str:
        try:
            return await wait(50)
        finally:
            ended.append(asyncio.get_running_loop().time())

    async def main() -> None:
        begun = Begun(slow())
        with pytest.raises(TimeoutError), within(5):
            await begun
        assert ended == [pytest.approx(5, abs=0.1)]

    run_virtual(main())


def test_it_may_turn_a_cancellation_into_a_result() -> None:
    async def stubborn() -> str:
        try:
            return await wait(50)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            return "kept"

    async def main() -> str:
        task = asyncio.ensure_future(_await(Begun(stubborn())))
        await asyncio.sleep(1)
        task.cancel()
        return await task

    async def _await(begun: Begun[str]) -> str:
        return await begun

    assert run_virtual(main()) == "kept"


def test_its_context_is_that_of_the_task() -> None:
    async def work() -> str:
        name.set("inside")
        await asyncio.sleep(1)
        return name.get()

    async def main() -> tuple[str, str]:
        return await Begun(work()), name.get()

    assert run_virtual(main()) == ("inside", "inside")


def test_one_that_is_given_up_cleans_up() -> None:
    cleaned: list[str] = []

    async def work() -> str:
        try:
            return await wait(50)
        finally:
            cleaned.append("up")

    async def outside() -> None:
        await Begun(work())

    async def main() -> None:
        coroutine: Coroutine[Any, Any, None] = outside()
        coroutine.send(None)
        coroutine.close()

    run_virtual(main())
    assert cleaned == ["up"]
