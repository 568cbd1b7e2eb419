"""The limit on what is in flight, which may be changed while a run goes on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..config.keys import Parallelism
from ..serving.transport.loop import beside
from .pacing.limiter import Limiter, limiter_of, steer
from .pacing.meter import Meter


class ParallelLimit:
    """Called for the limit; `asked` is what it was set to."""

    meter: Meter

    def __init__(self, asked: Parallelism, limiter: Limiter | None = None) -> None:
        self.asked = asked
        self.limiter: Limiter = limiter or limiter_of(asked)
        self._changed = asyncio.Event()

    def __call__(self) -> int:
        return self.limiter()

    def set(self, asked: Parallelism) -> None:
        """Go on with another limit, or within other bounds."""
        now = asyncio.get_running_loop().time()
        self.asked, self.limiter = asked, steer(self.limiter, now, asked)
        self.meter.switch(self.limiter)
        self._changed.set()

    async def watch(self, follow: Callable[[Limiter], Coroutine[Any, Any, None]]) -> None:
        """Have `follow` feed each limiter with loads while it is in use; until cancelled."""
        while True:
            followed = self.limiter
            async with beside(follow(followed)):
                while self.limiter is followed:
                    self._changed.clear()
                    await self._changed.wait()
