"""How many rollouts may be in flight. A limiter owns no tasks and no clients; time is an
argument."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

FIRST = 8
"""Where a limit that adapts begins: a start beyond is approached by doubling."""

GROWTH = 1.25
"""For each turnover of what is in flight, once the start is reached."""

CUT = 0.8

COOLDOWN_S = 15.0
"""One cut for each time that it gets too much; nor does the limit grow meanwhile."""

FULL = 0.9
"""Share of the limit in flight from which on the limit is what holds the run."""

STEPS = 4
"""Classes of numbers in flight for each doubling."""

SEEN = 16
"""Rollouts of a class before its time is believed."""

KNEE = 0.8
"""Twice as many take 2 ** KNEE times as long: more of them only queue."""

ROOM = 1.15
"""Above the knee that was found, so that the model is never idle."""

FORGET = 0.02
"""Weight of one more time among those of its class."""

KV_FULL, KV_HIGH = 0.95, 0.85
"""Use of vLLM's key-value cache at which the limit is cut, and at which it stops to grow."""


class Limiter(Protocol):
    """The seam for limits that move: called before each dispatch, told about each completion."""

    def __call__(self) -> int:
        """The limit now, at least 1."""
        ...

    def completed(self, now: float, in_flight: int, *, overloaded: bool) -> None:
        """One rollout ended at `now` (s) with `in_flight` still running; `overloaded`: it was
        throttled."""
        ...

    def timed(self, in_flight: int, seconds: float) -> None:
        """A rollout that began with so many in flight waited so long for its first answer."""
        ...

    def observed(self, now: float, load: Mapping[str, Any]) -> None:
        """What a model server says of its load."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same limit from start to end."""

    limit: int

    def __call__(self) -> int:
        return self.limit

    def completed(self, now: float, in_flight: int, *, overloaded: bool) -> None:
        return

    def timed(self, in_flight: int, seconds: float) -> None:
        return

    def observed(self, now: float, load: Mapping[str, Any]) -> None:
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
    changes: list[Change] = field(default_factory=list)
    """Cuts, and growth whenever it comes to another quarter."""
    _is_doubling: bool = True
    _quiet_until: float = -math.inf
    _hold: str = ""
    """What speaks against growth now."""
    _knee: float = math.inf
    """Found by the times; the limit stays near it."""
    _has_engine_figures: bool = False
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Class of in flight → number of rollouts, and the mean log of their time."""
    _num_429: dict[str, float] = field(default_factory=dict)
    _preemptions: float | None = None
    _began: float | None = None
    _told: int = 0

    def __post_init__(self) -> None:
        self.limit = float(max(self.floor, min(self.start, FIRST)))
        self._is_doubling = self.limit < self.start
        self._told = int(self.limit)

    def __call__(self) -> int:
        return int(self.limit)

    def completed(self, now: float, in_flight: int, *, overloaded: bool) -> None:
        if self._began is None:
            self._began = now
        if overloaded:
            self._cut(now, CUT * self.limit, "a rollout was refused as too much")
        elif now >= self._quiet_until and in_flight >= FULL * self.limit - 1 and not self._hold:
            self._grow(now, max(1, in_flight))

    def timed(self, in_flight: int, seconds: float) -> None:
        number, mean = self._seen.get(_class_of(in_flight), (0, 0.0))
        value = math.log(max(seconds, 1e-6))
        weight = max(1 / (number + 1), FORGET)
        self._seen[_class_of(in_flight)] = (number + 1, mean + weight * (value - mean))

    def observed(self, now: float, load: Mapping[str, Any]) -> None:
        if self._began is None:
            self._began = now
        self._hold = ""
        running, waiting = load.get("running", 0), load.get("waiting", 0)
        if load.get("throttled") and waiting > max(2, 0.1 * running):
            self._hold = "the rate limit is reached"
            if waiting > max(FIRST, running):
                wanted = running + 0.25 * waiting
                self._cut(now, wanted, f"{waiting} requests wait for the rate limit")
        if "kv_cache" in load:
            self._see_engine(now, load)

    def _see_engine(self, now: float, load: Mapping[str, Any]) -> None:
        """vLLM's own figures, which tell more than times."""
        self._has_engine_figures = True
        cache, queued = load["kv_cache"], load.get("engine_waiting", 0)
        preemptions, before = load.get("preemptions", 0), self._preemptions
        self._preemptions = preemptions
        if before is not None and preemptions > before:
            self._cut(now, CUT * self.limit, f"{preemptions - before:.0f} preemptions")
        elif cache >= KV_FULL:
            self._cut(now, CUT * self.limit, f"kv cache {cache:.2f}")
        elif queued > max(2, 0.25 * load.get("engine_running", 0)):
            self._cut(now, self.limit - 0.5 * queued, f"{queued:.0f} wait in vLLM's queue")
        if cache >= KV_HIGH or queued > 0:
            self._hold = self._hold or f"kv cache {cache:.2f}, {queued:.0f} queued"

    def _grow(self, now: float, in_flight: int) -> None:
        if self._is_past_the_knee(now):
            return
        if self._is_doubling:
            grown = self.limit + 1
            self._is_doubling = grown < self.start
        else:
            grown = self.limit * GROWTH ** (1 / in_flight)
        self.limit = min(self.ceiling, max(self.limit, min(grown, ROOM * self._knee)))
        if self.limit >= GROWTH * self._told or (self.limit == self.ceiling > self._told):
            self._say(now, "all of it was in flight")

    def _is_past_the_knee(self, now: float) -> bool:
        if self._has_engine_figures:
            return False
        here = self._seen.get(_class_of(self.limit))
        half = self._seen.get(_class_of(self.limit) - STEPS)
        if not (here and half and min(here[0], half[0]) >= SEEN):
            return False
        slower = here[1] - half[1]
        if slower < KNEE * math.log(2):
            return False
        self._knee = self.limit / math.exp(slower) if slower > math.log(2) else self.limit / 2
        self._knee = max(self._knee, self.limit / 2)
        why = f"{math.exp(slower):.1f} times slower than with half of it"
        self._cut(now, ROOM * self._knee, why)
        return True

    def _cut(self, now: float, wanted: float, why: str) -> None:
        if now < self._quiet_until:
            return
        self._is_doubling = False
        self._quiet_until = now + COOLDOWN_S
        self.limit = max(float(self.floor), min(self.limit - 1, wanted))
        self._say(now, why)

    def _say(self, now: float, why: str) -> None:
        before, self._told = self._told, int(self.limit)
        if before != self._told:
            self.changes.append(Change(now - (self._began or now), before, self._told, why))


def _class_of(in_flight: float) -> int:
    return round(STEPS * math.log2(max(1.0, in_flight)))


def limiter_of(asked: int | str) -> Limiter:
    """From `num_samples_in_parallel`: a number, `auto`, or `min-start-max`; ValueError else."""
    if isinstance(asked, int):
        if asked < 1:
            raise ValueError(f"must be at least 1, got {asked}")
        return Fixed(asked)
    if asked == "auto":
        return Adaptive(AUTO_FLOOR, AUTO_START, AUTO_CEILING)
    try:
        floor, start, ceiling = (int(each) for each in asked.split("-"))
    except ValueError:
        raise ValueError(
            f"give a number, auto, or min-start-max as in 4-64-1024, not '{asked}'"
        ) from None
    if not 1 <= floor <= start <= ceiling:
        raise ValueError(f"{asked}: of min-start-max, each must be at least the one before")
    return Adaptive(floor, start, ceiling)


AUTO_FLOOR, AUTO_START, AUTO_CEILING = 1, 32, 4096
"""Of `auto`."""
