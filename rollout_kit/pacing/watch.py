"""Beside a run whose limit adapts itself: asks the model servers for their load, and tells what
became of the limit."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ..commands.progress import Progress
from ..errors import RolloutError
from ..transport.peers import Peers
from ..types import JsonObject
from .limiter import Adaptive, Change

EVERY_S = 1.0

PATIENCE_S = 5.0
"""For one answer; a server that is too busy for it is asked again later."""

SAY_EVERY_S = 10.0
"""People get one line for what changed meanwhile."""

UNKNOWN = frozenset({404, 405, 501})
"""Statuses of a server that knows nothing of its load."""

OF_THE_ENGINE = ("kv_cache", "engine_running", "engine_waiting", "preemptions")
"""Figures that all workers of a server have from the same engine."""


@dataclass(slots=True)
class Watch:
    """`models`: the names of the model servers."""

    limiter: Adaptive
    peers: Peers
    models: Collection[str]
    progress: Progress
    _last: dict[str, JsonObject] = field(default_factory=dict)
    """What each server said last: one that is silent for a moment has not lost its load."""
    _mute: set[str] = field(default_factory=set)
    """Servers that know nothing of their load."""
    _num_told: int = 0
    _said_at: float = float("-inf")

    async def go(self) -> None:
        """For as long as the run goes on; never fails."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.gather(*(self._ask(name) for name in set(self.models) - self._mute))
            self.limiter.observed(loop.time(), merged(list(self._last.values())))
            self.progress.limit = self.limiter()
            self.tell(loop.time())
            await asyncio.sleep(EVERY_S)

    async def _ask(self, name: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                answers = await self.peers.call_each(name, "/load")
        except RolloutError as error:
            if error.status in UNKNOWN:
                self._mute.add(name)
        except Exception:  # a server's mistake in what nobody needs: the run goes on without
            return
        else:
            self._last[name] = of_one_server([_figures(each) for each in answers])

    def tell(self, now: float) -> None:
        """What has changed since the last time, unless people have had a line only just now."""
        number = self.limiter.num_changes - self._num_told
        if not number or not (self.progress.as_json or now - self._said_at >= SAY_EVERY_S):
            return
        self._num_told, self._said_at = self.limiter.num_changes, now
        changes = list(self.limiter.changes)[-number:]
        for change in changes if self.progress.as_json else [summed(changes)]:
            self.progress.say(f"parallelism {change}", event="parallelism", **change._asdict())


def summed(changes: list[Change]) -> Change:
    """Several in a row as one, whose reason is the last one's."""
    last = changes[-1]
    why = f"{last.why} (the last of {len(changes)} changes)" if len(changes) > 1 else last.why
    return Change(last.at, changes[0].before, last.after, why)


def of_one_server(workers: list[JsonObject]) -> JsonObject:
    """Its workers' figures together."""
    engine = {
        name: max(each[name] for each in workers if name in each)
        for name in OF_THE_ENGINE
        if any(name in each for each in workers)
    }
    return merged(workers) | engine


def merged(loads: list[JsonObject]) -> JsonObject:
    """Of several servers: numbers add up; the fullest cache counts, and any limit that is
    reached."""
    whole: JsonObject = {}
    for load in loads:
        for name, value in load.items():
            if name in ("kv_cache", "throttled"):
                whole[name] = max(whole.get(name, 0), value)
            else:
                whole[name] = whole.get(name, 0) + value
    return whole


def _figures(answer: Any) -> JsonObject:
    """What is a number: a server of another kind may say anything."""
    found = answer if isinstance(answer, dict) else {}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}
