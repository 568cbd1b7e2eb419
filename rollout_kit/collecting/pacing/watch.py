"""Asks the model servers for their load while a run goes on, and reports changes of its limit."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from ...errors import RolloutError
from ...types import JsonObject, Say
from .capacity import Size
from .limiter import Adaptive, Change, Limiter

EVERY_S, OPENING_S = 1.0, 0.25
"""Pauses between loads, and while the limit doubles."""

PATIENCE_S = 5.0
"""Time for one answer; a server that needs longer is asked again later."""

SAY_EVERY_S = 10.0
"""People get at most one line per this time; changes in between are summed up."""

UNKNOWN = frozenset({404, 405, 501})
"""Statuses of a server without a `/load` route."""

OF_THE_ENGINE = (
    *("kv_cache", "engine_running", "engine_waiting", "preemptions"),
    *("max_sequences", "kv_cache_tokens", "max_model_len", "output_tokens_each"),
)
"""Figures that all workers of a server get from the same engine."""

NOT_ADDED = frozenset({"kv_cache", "throttled", "max_model_len", "output_tokens_each"})
"""Figures whose maximum counts where there are several servers."""


@dataclass(slots=True)
class Watch:
    """`ask(server)` returns the load of each worker of a model server. Each load goes to `take` and
    to the limiter; `refresh` is called when the limit has grown."""

    limiter: Limiter
    models: Collection[str]
    ask: Callable[[str], Awaitable[list[Any]]]
    say: Say
    say_every_s: float = SAY_EVERY_S
    """0 reports each change on its own."""
    in_flight: Callable[[], int] | None = None
    size: Callable[[], Size | None] = lambda: None
    take: Callable[[JsonObject], object] = lambda load: None
    refresh: Callable[[], object] = lambda: None
    _last: dict[str, JsonObject] = field(default_factory=dict)
    """The last load of each server, kept while a server does not answer."""
    _without_load: set[str] = field(default_factory=set)
    _num_said: int = 0
    _said_at: float = float("-inf")

    async def watch(self) -> None:
        """Run until cancelled, and report what changed until then; never raises."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                asked = set(self.models) - self._without_load
                await asyncio.gather(*(self._ask(name) for name in asked))
                self._record(loop.time())
                self.report(loop.time())
                await asyncio.sleep(OPENING_S if self._is_opening else EVERY_S)
        finally:
            self.report(loop.time())

    def _record(self, now: float) -> None:
        load, before = add_loads(list(self._last.values())), self.limiter()
        if self.in_flight is not None:
            load["in_flight"] = self.in_flight()
        if isinstance(self.limiter, Adaptive) and self.limiter.seeks and (size := self.size()):
            load["tokens_each"] = size.tokens(load)
        engines = [each for each in self._last.values() if "engine_running" in each]
        self.take({**load, "engine_sent": sum(each.get("running", 0) for each in engines)})
        self.limiter.record_load(now, load)
        if self.limiter() > before:
            self.refresh()

    @property
    def _is_opening(self) -> bool:
        return isinstance(self.limiter, Adaptive) and self.limiter.is_opening

    async def _ask(self, name: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                answers = await self.ask(name)
        except RolloutError as error:
            if error.status in UNKNOWN:
                self._without_load.add(name)
        except Exception:  # the load is optional, so no answer to it may end the run
            return
        else:
            self._last[name] = load_of_server([_figures(each) for each in answers])

    def report(self, now: float) -> None:
        """Report the changes since the last report, unless that was a moment ago."""
        if not isinstance(self.limiter, Adaptive):
            return
        number = self.limiter.num_changes - self._num_said
        if not number or now - self._said_at < self.say_every_s:
            return
        self._num_said, self._said_at = self.limiter.num_changes, now
        changes = list(self.limiter.changes)[-number:]
        for change in [sum_up(changes)] if self.say_every_s else changes:
            self.say(f"parallelism {change}", event="parallelism", **change._asdict())


def sum_up(changes: list[Change]) -> Change:
    """Consecutive changes as one, with the reason of the last."""
    last = changes[-1]
    why = f"{last.why} (the last of {len(changes)} changes)" if len(changes) > 1 else last.why
    return Change(last.at, changes[0].before, last.after, why)


def load_of_server(workers: list[JsonObject]) -> JsonObject:
    """The load of one server from those of its workers."""
    engine = {
        name: max(each[name] for each in workers if name in each)
        for name in OF_THE_ENGINE
        if any(name in each for each in workers)
    }
    return add_loads(workers) | engine


def add_loads(loads: list[JsonObject]) -> JsonObject:
    """Sums over several servers; of the figures that do not add up the maximum."""
    whole: JsonObject = {}
    for load in loads:
        for name, value in load.items():
            if name in NOT_ADDED:
                whole[name] = max(whole.get(name, 0), value)
            else:
                whole[name] = whole.get(name, 0) + value
    return whole


def _figures(answer: Any) -> JsonObject:
    """The numbers of an answer; foreign servers may answer anything."""
    found = answer if isinstance(answer, dict) else {}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}
