"""Time limits: what `asyncio.timeout` promises, at a fraction of its cost."""

import asyncio
import gc
import weakref

import pytest

from rollout_kit import time_limit
from rollout_kit.api.testing import run_virtual
from rollout_kit.time_limit import GRAIN_S, later, running_loop, within


def test_a_block_in_time_is_left_alone() -> None:
    async def main() -> str:
        with within(0.5), within(None):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.6)
        return "still here"

    assert run_virtual(main()) == "still here"


def test_a_block_that_takes_too_long_is_ended_and_never_early() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (0.0, 0.01, 0.2):
            began = loop.time()
            with pytest.raises(TimeoutError), within(seconds):
                await asyncio.sleep(30)
            assert loop.time() - began >= seconds
        task = asyncio.current_task()
        assert task and not task.cancelling()

    run_virtual(main())


def test_of_two_the_one_whose_time_is_up_raises() -> None:
    async def main() -> list[str]:
        said = []
        try:
            with within(10):
                try:
                    with within(0.01):
                        await asyncio.sleep(30)
                except TimeoutError:
                    said.append("inner")
                await asyncio.sleep(0)
        except TimeoutError:
            said.append("outer")
        try:
            with within(0.01):
                try:
                    with within(10):
                        await asyncio.sleep(30)
                except TimeoutError:
                    said.append("inner")
        except TimeoutError:
            said.append("outer")
        return said

    assert run_virtual(main()) == ["inner", "outer"]


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def main() -> None:
        async def work() -> None:
            with within(10):
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def both() -> None:
            with within(0.01):
                try:
                    await asyncio.sleep(30)
                finally:
                    task = asyncio.current_task()
                    assert task
                    task.cancel()  # somebody else, at the same moment

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(both())

    run_virtual(main())


def test_other_errors_pass() -> None:
    async def main() -> None:
        with pytest.raises(KeyError), within(0.01):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                raise KeyError("x") from None

    run_virtual(main())


def test_a_thousand_limits_of_all_lengths_end_when_they_should() -> None:
    async def main() -> int:
        async def one(seconds: float) -> bool:
            try:
                with within(seconds):
                    await asyncio.sleep(0.3)
            except TimeoutError:
                return True
            return False

        ended = await asyncio.gather(*(one(number % 10 * 0.1) for number in range(1000)))
        return sum(ended)

    assert run_virtual(main()) in range(300, 401)  # the 0.3 s ones may go either way


def test_limits_of_an_hour_end_together() -> None:
    async def main() -> None:
        for _ in range(10_000):
            with within(3600):
                pass
            if _ % 1000 == 0:
                await asyncio.sleep(0.01)
        clock = time_limit._of_thread.clock
        assert len(clock._limits) <= 2 and not any(clock._limits.values())
        loop = asyncio.get_running_loop()
        for seconds in (0.01, 1, 10, 100, 600, 3600):
            late_s = clock.add(within(None), seconds) * GRAIN_S - loop.time() - seconds
            assert 0 <= late_s <= max(GRAIN_S, 0.01 * seconds) + 0.001

    run_virtual(main())


def test_each_loop_has_a_clock_of_its_own() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError), within(0.01):
            await asyncio.sleep(30)

    asyncio.run(main())
    asyncio.run(main())


def test_a_limit_that_is_renewed_begins_anew() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError), within(5) as limit:
            for _ in range(4):
                await asyncio.sleep(4)
                limit.renew()
            await asyncio.sleep(60)
        assert loop.time() == pytest.approx(21, abs=0.1)
        limit.renew()  # too late, and no harm

    run_virtual(main())


async def _freed_at_once() -> bool:
    class Owner:
        def __init__(self) -> None:
            self.timer = later(60, self.struck)

        def struck(self) -> None: ...

    owner = Owner()
    owner.timer.cancel()
    seen = weakref.ref(owner)
    del owner
    return seen() is None


def test_what_was_cancelled_leaves_nothing_for_the_garbage_collector() -> None:
    gc.disable()
    try:
        assert asyncio.run(_freed_at_once())
    finally:
        gc.enable()


def test_what_is_called_later_is_called_once_and_not_when_cancelled() -> None:
    struck: list[str] = []

    async def main() -> None:
        later(0.05, lambda: struck.append("kept"))
        later(0.05, lambda: struck.append("cancelled")).cancel()
        await asyncio.sleep(1)

    run_virtual(main())
    assert struck == ["kept"]


def test_the_running_loop_is_that_of_its_thread_and_of_its_run() -> None:
    async def ask() -> bool:
        with within(1):  # leaves a clock behind, which must not be taken for that of another loop
            return running_loop() is asyncio.get_running_loop()

    async def main() -> list[bool]:
        return [await ask(), await asyncio.to_thread(lambda: asyncio.run(ask())), await ask()]

    assert asyncio.run(main()) == asyncio.run(main()) == [True] * 3
