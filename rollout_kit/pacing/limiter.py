"""How many rollouts may be in flight. A limiter owns no tasks and no clients; time is an
argument."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..config.keys.parallelism import Parallelism
from ..types import JsonObject
from .knee import EXPLORED, Times

FIRST = 8
"""Where a limit that adapts begins: a start beyond is approached by doubling."""

STEEP, GROWTH = 1.5, 1.2
"""For each turnover of what is in flight, once the start is reached; the second from the first time
on that something spoke against more."""

CUT = 0.8

COOLDOWN_S = 15.0
"""One cut for each time that it gets too much; nor does the limit grow meanwhile."""

FULL = 0.9
"""Share of the limit in flight from which on the limit is what holds the run."""

ROOM = 1.2
"""Above the knee that was found, so that the model is never idle."""

TOLD = 1.25
"""Growth is a change that is told once it comes to that."""

LEARN_EVERY = 64
"""Times after which the knee is looked for anew, between two looks at the load."""

KV_FULL, KV_HIGH = 0.92, 0.88
"""Use of vLLM's key-value cache at which the limit is cut, and at which it stops to grow."""

MAX_CHANGES = 1000
"""The last ones are kept."""


class Limiter(Protocol):
    """The seam for limits that move: called before each dispatch, told about each completion."""

    def __call__(self) -> int:
        """The limit now, at least 1."""
        ...

    def record_outcome(self, now: float, in_flight: int, *, overloaded: bool) -> None:
        """One rollout ended at `now` (s) with `in_flight` still running; `overloaded`: it was
        throttled."""
        ...

    def record_time(self, now: float, in_flight: int, seconds: float) -> None:
        """A rollout that began with so many in flight waited so long for its first answer."""
        ...

    def record_load(self, now: float, load: Mapping[str, Any]) -> None:
        """What a model server says of its load."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same limit from start to end."""

    limit: int

    def __call__(self) -> int:
        return self.limit

    def record_outcome(self, now: float, in_flight: int, *, overloaded: bool) -> None:
        return

    def record_time(self, now: float, in_flight: int, seconds: float) -> None:
        return

    def record_load(self, now: float, load: Mapping[str, Any]) -> None:
        return


class Change(NamedTuple):
    """`at` in seconds of the run."""

    at: float
    before: int
    after: int
    why: str

    def __str__(self) -> str:
        return f"{self.before}→{self.after}: {self.why}"


@dataclass(slots=True)
class Adaptive:
    """Between `floor` and `ceiling`, as much as the models take in.

    It grows while all that it allows is in flight and nothing speaks against it, and is cut, once
    for each time, when the endpoint refuses, vLLM runs out of cache, or more in flight only wait
    longer: where the time of an answer doubles with what is in flight, the queue is all that grows.
    """

    floor: int
    start: int
    ceiling: int
    limit: float = field(init=False)
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    """Cuts, and growth whenever it comes to another quarter."""
    num_changes: int = 0
    _is_doubling: bool = True
    _is_steep: bool = True
    _quiet_until: float = -math.inf
    _hold: str = ""
    """What speaks against growth now."""
    _top: float = math.inf
    """By the times, no more than that."""
    _times: Times = field(default_factory=Times)
    _num_timed: int = 0
    _has_engine_figures: bool = False
    _counted: dict[str, float] = field(default_factory=dict)
    """The counters of the last load."""
    _began: float | None = None
    _told: int = 0

    def __post_init__(self) -> None:
        self.limit = float(max(self.floor, min(self.start, FIRST)))
        self._is_doubling = self.limit < self.start
        self._told = int(self.limit)

    def __call__(self) -> int:
        return int(self.limit)

    def record_outcome(self, now: float, in_flight: int, *, overloaded: bool) -> None:
        self._begin(now)
        if overloaded:
            self._cut(now, CUT * self.limit, "a rollout was refused as too much")
        elif now >= self._quiet_until and in_flight + 1 >= FULL * int(self.limit):
            self._grow(now)

    def record_time(self, now: float, in_flight: int, seconds: float) -> None:
        self._begin(now)
        self._times.add(now, in_flight, seconds)
        self._num_timed += 1
        if self._num_timed % LEARN_EVERY == 0:
            self._learn(now)

    def record_load(self, now: float, load: Mapping[str, Any]) -> None:
        self._begin(now)
        self._hold = ""
        if refused := self._more_of("num_429", load):
            self._hold = f"{refused:.0f} requests were refused"
        running, waiting = load.get("running", 0), load.get("waiting", 0)
        if load.get("throttled") and waiting > max(2, 0.1 * running):
            self._hold = "the rate limit is reached"
            if waiting > max(FIRST, running):
                wanted = self.limit - 0.75 * waiting
                self._cut(now, wanted, f"{waiting} requests wait for the rate limit")
        if "kv_cache" in load:
            self._see_engine(now, load)
        if self._hold:
            self._is_steep = False
        self._learn(now)

    def _see_engine(self, now: float, load: Mapping[str, Any]) -> None:
        """vLLM's own figures, which tell more than times."""
        self._has_engine_figures = True
        cache, queued = load["kv_cache"], load.get("engine_waiting", 0)
        wanted, why = self.limit, ""
        if preempted := self._more_of("preemptions", load):
            wanted, why = CUT * self.limit, f"{preempted:.0f} preemptions"
        elif cache >= KV_FULL:
            wanted, why = CUT * self.limit, f"kv cache {cache:.2f}"
        if queued > max(2, 0.25 * load.get("engine_running", 0)):
            left = max(self.limit / 2, self.limit - 0.75 * queued)
            if left < wanted:
                wanted, why = left, f"{queued:.0f} wait in vLLM's queue"
        if why:
            self._cut(now, wanted, why)
        if cache >= KV_HIGH or queued > 0:
            self._hold = self._hold or f"kv cache {cache:.2f}, {queued:.0f} queued"

    def _more_of(self, counter: str, load: Mapping[str, Any]) -> float:
        """Since the last look; a server that started anew counts from nothing."""
        if (value := load.get(counter)) is None:
            return 0.0
        before, self._counted[counter] = self._counted.get(counter, value), value
        return max(0.0, value - before)

    def _grow(self, now: float) -> None:
        if self._hold:
            return
        if self._is_doubling:
            grown = self.limit + 1
            self._is_doubling = grown < self.start
        else:
            grown = self.limit * (STEEP if self._is_steep else GROWTH) ** (1 / int(self.limit))
        self.limit = min(self.ceiling, max(self.limit, min(grown, self._top)))
        if self.limit >= TOLD * self._told or self.limit == self.ceiling:
            self._say(now, "all of it was in flight")

    def _learn(self, now: float) -> None:
        """Where more only wait longer: no further than just above, nor more than what is sure."""
        self._times.forget(now, self.limit)
        knee = self._times.knee()
        if knee is None or self._has_engine_figures:
            self._top = math.inf
        elif not knee.is_sure:
            self._top = TOLD * EXPLORED * knee.at
        else:
            self._is_steep = False
            self._top = (CUT if knee.is_lowest else ROOM) * knee.at
            if int(self.limit) > max(1.1 * self._top, self._top + 1):
                why = f"{knee.slower:.1f} times slower with {knee.most:.0f} than with {knee.at:.0f}"
                self._cut(now, self._top, why)

    def _cut(self, now: float, wanted: float, why: str) -> None:
        if now < self._quiet_until:
            return
        self._is_doubling = self._is_steep = False
        self._quiet_until = now + COOLDOWN_S
        self.limit = max(float(self.floor), min(self.limit - 1, wanted))
        self._say(now, why)

    def history(self) -> JsonObject:
        """What the metrics file holds; times in seconds of the run."""
        changes = [(round(at, 1), *rest) for at, *rest in self.changes]
        return {"changes": changes, "last": self()}

    def _begin(self, now: float) -> None:
        if self._began is None:
            self._began = now

    def _say(self, now: float, why: str) -> None:
        before, self._told = self._told, int(self.limit)
        if before != self._told:
            began = now if self._began is None else self._began
            self.changes.append(Change(now - began, before, self._told, why))
            self.num_changes += 1


def limiter_of(asked: Parallelism) -> Limiter:
    """A limiter that keeps to `num_samples_in_parallel`."""
    if asked.fixed:
        return Fixed(asked.fixed)
    return Adaptive(asked.floor, asked.start, asked.ceiling)
