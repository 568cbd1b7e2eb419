"""The requests that a model works on at a time, and which of those that wait comes next.

Requests of one run are served in the order of their arrival. Of several runs, those of the highest
priority come first. Runs of equal priority get shares of the places, measured in the time that
their requests hold them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from ...session import current_session
from ...time_limit import running_loop


class Claim(NamedTuple):
    """What a run claims of a model server. `name` is the same for all requests of the run."""

    name: str = ""
    priority: int = 0
    share: float = 1.0

    def to_header(self) -> str:
        """The value of the `CLAIM_HEADER` header."""
        return f"{self.priority} {self.share!r} {self.name}"

    @classmethod
    def describe(cls, output: str, priority: int, share: float) -> str:
        """The header of the run with this output; empty if it claims nothing in particular."""
        if (priority, share) == (NO_CLAIM.priority, NO_CLAIM.share):
            return ""
        return cls(f"{crc32(output.encode()):08x}", priority, share).to_header()

    @classmethod
    def from_header(cls, text: str) -> "Claim":
        """NO_CLAIM for a text that is none."""
        priority, _, rest = text.partition(" ")
        share, _, name = rest.partition(" ")
        try:
            found = cls(name, int(priority), float(share))
        except ValueError:
            return NO_CLAIM
        return found if 0 < found.share < float("inf") else NO_CLAIM


NO_CLAIM = Claim()


@dataclass(slots=True)
class _Run:
    """The requests of one run."""

    claim: Claim
    waiting: deque["asyncio.Future[None]"] = field(default_factory=deque)
    num_held: int = 0
    used: float = 0.0
    """Seconds that its requests held places, divided by its share."""


class ModelPlaces:
    """`number` places."""

    def __init__(self, number: int) -> None:
        self._num_free = number
        self._runs: dict[str, _Run] = {}
        """Runs with requests that wait or hold a place."""
        self._settled_at = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(len(run.waiting) for run in self._runs.values())

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Context in which the current request has a place."""
        session = current_session()
        run = self._enter(Claim.from_header(session.claim) if session else NO_CLAIM)
        try:
            await self._wait(run)
        except BaseException:
            self._leave(run)
            raise
        try:
            yield
        finally:
            self._settle()
            run.num_held -= 1
            self._num_free += 1
            self._leave(run)
            self._hand_out()

    async def _wait(self, run: _Run) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        run.waiting.append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in run.waiting:
                run.waiting.remove(turn)
            elif not turn.cancelled():  # it was given a place in this turn of the loop
                run.num_held -= 1
                self._num_free += 1
                self._hand_out()
            raise

    def _enter(self, claim: Claim) -> _Run:
        """The run of a claim. One that was away gains nothing by that."""
        self._settle()
        if (run := self._runs.get(claim.name)) is None:
            run = self._runs[claim.name] = _Run(claim)
            equal = (r for r in self._runs.values() if r.claim.priority == claim.priority)
            run.used = min((r.used for r in equal if r is not run), default=0.0)
        run.claim = claim
        return run

    def _leave(self, run: _Run) -> None:
        if not (run.waiting or run.num_held):
            self._runs.pop(run.claim.name, None)

    def _hand_out(self) -> None:
        while self._num_free:
            waiting = [run for run in self._runs.values() if run.waiting]
            if not waiting:
                return
            self._settle()
            run = min(waiting, key=lambda run: (-run.claim.priority, run.used))
            if (turn := run.waiting.popleft()).done():  # cancelled
                continue
            turn.set_result(None)
            run.num_held += 1
            self._num_free -= 1

    def _settle(self) -> None:
        """Count the time that places were held until now."""
        now = running_loop().time()
        seconds, self._settled_at = now - self._settled_at, now
        for run in self._runs.values():
            run.used += run.num_held * seconds / run.claim.share
