"""Attempts that wait for the batches of model servers. They hold no place, no session and no memory
to speak of: what makes them again is in a temporary file.
"""

import asyncio
import os
import tempfile
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence

import orjson

from ...errors import RolloutError
from ...types import Attempt, PutAside
from ..cluster.messages import decode_attempt, encode_attempt

FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWTH = 0.1, 5.0, 1.5
"""Pauses between two questions to a model server, which asks the provider less often."""

AskSettled = Callable[[str, Sequence[str]], Awaitable[Sequence[str]]]
"""Which of the batches of a model server have ended."""

_Entry = tuple[int, int]
"""Offset and size in the file."""


class Aside:
    """Attempts by server and batch. `number` of them have not been taken back."""

    def __init__(self) -> None:
        self.number = 0
        self._waiting: dict[str, dict[str, list[_Entry]]] = {}
        self._ready: deque[_Entry] = deque()
        self._has_some = asyncio.Event()
        self._descriptor = -1
        self._size = 0

    @property
    def is_ready(self) -> bool:
        """Whether an attempt may go on."""
        return bool(self._ready)

    def stages(self) -> Counter[str]:
        """What is waited for → by how many."""
        return Counter(
            {
                f"a batch of {server}": sum(map(len, batches.values()))
                for server, batches in self._waiting.items()
                if batches
            }
        )

    def add(self, found: PutAside) -> None:
        raw = orjson.dumps(encode_attempt(found.attempt))
        if self._descriptor < 0:
            with tempfile.TemporaryFile() as stream:
                self._descriptor = os.dup(stream.fileno())
        os.pwrite(self._descriptor, raw, self._size)
        batches = self._waiting.setdefault(found.server, {})
        batches.setdefault(found.batch, []).append((self._size, len(raw)))
        self._size += len(raw)
        self.number += 1
        self._has_some.set()

    def next(self) -> Attempt | None:
        """An attempt whose batch has ended."""
        if not self._ready:
            return None
        offset, size = self._ready.popleft()
        self.number -= 1
        attempt = decode_attempt(orjson.loads(os.pread(self._descriptor, size, offset)))
        if not self.number:
            os.ftruncate(self._descriptor, 0)
            self._size = 0
        return attempt

    async def watch(self, ask: AskSettled, refresh: Callable[[], object]) -> None:
        """Until cancelled, find the batches that have ended; `refresh` is called after that."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._has_some.wait()
            if await self._look(ask):
                refresh()
                pause_s = FIRST_PAUSE_S
            if not any(self._waiting.values()):
                self._has_some.clear()
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(GROWTH * pause_s, LONGEST_PAUSE_S)

    async def _look(self, ask: AskSettled) -> bool:
        has_found = False
        for server, batches in list(self._waiting.items()):
            ids = list(batches)
            try:
                settled = await ask(server, ids) if ids else ()
            except RolloutError as error:
                # an attempt that asks itself gets the same error, as its own
                settled = () if error.retryable else ids
            for id in settled:
                self._ready.extend(batches.pop(id, ()))
                has_found = True
        return has_found

    def close(self) -> None:
        """Forget them: the next run asks for them again."""
        self.number = 0
        self._waiting.clear()
        self._ready.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._size = 0
