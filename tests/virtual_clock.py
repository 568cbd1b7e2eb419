"""An event loop whose clock jumps to the next timer whenever nothing else can run: minutes of
waiting in milliseconds, and the same every time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> list[Any]:
            if events := select(0):
                return events
            if timeout is None:
                raise RuntimeError("deadlock: nothing is ready, and no timer is set")
            self._now += timeout
            return []

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
