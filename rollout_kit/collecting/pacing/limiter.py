"""Limits the number of rollouts in flight. A limiter owns no tasks and no clients; time is an
argument."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...config.keys import AUTO, Parallelism
from ...errors import number_of
from ...types import JsonObject
from .capacity import find_capacity, find_width
from .knee import EXPLORED, Times
from .signs import AnswerTimes, Refusals

STEEP, GROWTH = 1.5, 1.2
"""Growth factors per turnover (as many completions as the limit) once the limit is open: STEEP
until the first sign of overload, then GROWTH."""

FEW = 8
"""A shorter queue is no reason for a cut."""

ADMITTED_S = 2.0
"""While an engine has started more requests within this time, its queue is still being read."""

CUT = 0.8
"""Factor applied to the limit on overload."""

COOLDOWN_S = 15.0
"""After a cut, the limit neither shrinks nor grows for this many seconds."""

FULL = 0.9
"""The limit grows only while at least this share of it is in flight, and not much more, as after a
cut."""

ROOM = 1.2
"""Highest limit as a multiple of the measured knee; above 1, so that the model is never idle."""

REPORT = 1.25
"""Report an increase of the limit only when it reaches this factor."""

LEARN_EVERY = 64
"""Recompute the knee after this many recorded times, and with each recorded load."""

KV_FULL, KV_HIGH = 0.92, 0.88
"""Use of vLLM's key-value cache at which the limit is cut, and at which it stops growing."""

MAX_CHANGES = 1000
"""Only the latest changes are kept."""


class Limiter(Protocol):
    """Called for the limit before each dispatch; all completions are recorded.

    Example:

        class AtNight:
            def __call__(self):
                return 4

            def record_outcomes(self, now, number, in_flight, *, overloaded): ...
            def record_time(self, now, in_flight, seconds): ...
            def record_load(self, now, load): ...


        await rk.collect(
            rows, model=lambda params: "4", environment="string_match", parallelism=AtNight()
        )
    """

    def __call__(self) -> int:
        """The current limit, at least 1."""
        ...

    def record_outcomes(self, now: float, number: int, in_flight: int, *, overloaded: bool) -> None:
        """Of `in_flight` rollouts, `number` ended at `now` (s); `overloaded`: one of them was
        throttled."""
        ...

    def record_time(self, now: float, in_flight: int, seconds: float) -> None:
        """A rollout that began with `in_flight` running got its first response after `seconds`."""
        ...

    def record_load(self, now: float, load: Mapping[str, Any]) -> None:
        """The model servers reported their load; `in_flight` in it are this run's rollouts."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant limit."""

    limit: int

    def __call__(self) -> int:
        return self.limit

    def record_outcomes(self, now: float, number: int, in_flight: int, *, overloaded: bool) -> None:
        return

    def record_time(self, now: float, in_flight: int, seconds: float) -> None:
        return

    def record_load(self, now: float, load: Mapping[str, Any]) -> None:
        return


class Change(NamedTuple):
    """A change of the limit; `at` in seconds since the start of the run."""

    at: float
    before: int
    after: int
    why: str

    def __str__(self) -> str:
        return f"{self.before}→{self.after}: {self.why}"


@dataclass(slots=True)
class Adaptive:
    """A limit between `floor` and `ceiling` that follows the capacity of the models.

    It begins at `start`. With `seeks` that is only until an engine reports what it holds or an
    endpoint its rate. Without either the limit doubles with each turnover of answered requests,
    until the first sign of overload. After that it grows with finished rollouts while it is fully
    used. It is cut when the endpoint refuses requests, when vLLM runs out of cache, or when
    response times grow in proportion to the number in flight: then only the queue grows.
    """

    floor: int
    start: int
    ceiling: int
    seeks: bool = False
    limit: float = field(init=False)
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    """Cuts, and increases by the factor REPORT."""
    num_changes: int = 0
    _doubles_to: float = 0.0
    """The limit doubles up to here."""
    _is_steep: bool = True
    _quiet_until: float = -math.inf
    _calm_until: float = -math.inf
    """When more than an endpoint held may be tried again."""
    _hold: str = ""
    """Why the limit may not grow now; empty if it may."""
    _top: float = math.inf
    """Upper bound from the response times."""
    _times: Times = field(default_factory=Times)
    _num_timed: int = 0
    _has_engine_figures: bool = False
    _counted: dict[str, float] = field(default_factory=dict)
    """Counters of the last recorded load."""
    _answers: AnswerTimes = field(default_factory=AnswerTimes)
    _refusals: Refusals = field(default_factory=Refusals)
    _loaded_at: float | None = None
    _is_watched: bool = False
    """Whether loads come with what is in flight: then the limit grows with them, and evenly."""
    _ran: float = 0.0
    """Requests that ran at the last load."""
    _most_running: float = 0.0
    _admitted_at: float = -math.inf
    """When the engine last had no queue, or ran more requests than ever before."""
    _began: float | None = None
    _reported: int = 0

    def __post_init__(self) -> None:
        self.limit = float(self.start)
        self._doubles_to = self.ceiling if self.seeks else 0.0
        self._reported = int(self.limit)

    def __call__(self) -> int:
        return int(self.limit)

    @property
    def is_opening(self) -> bool:
        """Whether the limit doubles, so that loads are worth more than one look a second."""
        return self.limit < self._doubles_to

    def record_outcomes(self, now: float, number: int, in_flight: int, *, overloaded: bool) -> None:
        self._begin(now)
        if overloaded:
            self._cut(now, CUT * self.limit, "a rollout was throttled")
        elif not (self.is_opening and self._answers.are_counted):
            self._answers.due += number
            if not self._is_watched:
                self._grow(now, in_flight, math.inf)

    def record_time(self, now: float, in_flight: int, seconds: float) -> None:
        self._begin(now)
        self._times.add(now, in_flight, seconds)
        self._num_timed += 1
        if self._num_timed % LEARN_EVERY == 0:
            self._learn(now)

    def record_load(self, now: float, load: Mapping[str, Any]) -> None:
        self._begin(now)
        since = 0.0 if self._loaded_at is None else now - self._loaded_at
        self._loaded_at, self._hold = now, ""
        if refused := self._count_new("num_429", load):
            self._hold = f"{refused:.0f} requests were refused"
            self._refuse(now, load, refused)
        if down := load.get("endpoints_down"):
            self._hold = f"{number_of(down, 'endpoint')} cannot be reached"
        running, waiting = load.get("running", 0), load.get("waiting", 0)
        if load.get("throttled") and waiting > max(2, 0.1 * running):
            self._hold = "the rate limit is reached"
            if waiting > max(FEW, running) and self._is_drained(load):
                wanted = self.limit - 0.75 * waiting
                self._cut(now, wanted, f"{waiting} requests wait for the rate limit")
        if "kv_cache" in load:
            self._judge_engine(now, load)
        self._ran = running
        if self._hold:
            self._is_steep, self._doubles_to = False, 0.0
        self._learn(now)
        self._open(now, load, since)

    def _open(self, now: float, load: Mapping[str, Any], since: float) -> None:
        """Go to what is known to fit, and grow with the requests that were answered meanwhile."""
        answers = self._answers
        if "answered" not in load:
            for counter in ("answered", "answered_s"):
                self._counted[counter] = 0.0  # a server does not report it before the first answer
        else:
            number, seconds = self._count_new("answered", load), self._count_new("answered_s", load)
            answers.are_counted = True
            answers.add(number, seconds, self.limit)
            if self.is_opening:
                answers.due += number
            if answers.are_slower:
                self._doubles_to = 0.0
        if self.seeks and self.is_opening:
            self._seek(now, load)
        if (in_flight := load.get("in_flight")) is not None:
            self._is_watched = True
            self._grow(now, in_flight, since)

    def _seek(self, now: float, load: Mapping[str, Any]) -> None:
        """Open to the capacity of the engine or to the rate of the endpoint, once either is known.
        The limit may still double from there: what fits was estimated."""
        room, answer_s = find_capacity(load), self._answers.mean_s
        if room is not None:
            wanted, why = room, f"the engine has room for about {room:,.0f}"
        elif answer_s and (width := find_width(load, answer_s)):
            wanted, why = width, f"the rate limit allows about {width:,.0f}"
        else:
            return
        self.seeks = False
        if room is not None or wanted > self.limit:
            self.limit = max(float(self.floor), min(wanted, self.ceiling, self._top))
            self._report(now, why)

    def _refuse(self, now: float, load: Mapping[str, Any], refused: float) -> None:
        """Close to what the endpoint holds: what was in flight, without what it refused."""
        in_flight = load.get("in_flight", int(self.limit))
        if not self._refusals.add(now, refused, in_flight, int(self.limit)):
            return
        excess = max(min(self._refusals.number, in_flight), load.get("waiting", 0))
        ran = max(load.get("running", 0), self._ran)  # a pause after a refusal lets few run
        held = max(ran, self._refusals.in_flight - excess)
        if held < self.limit:
            self._quiet_until = -math.inf
            self._cut(
                now, held, f"of {self._refusals.in_flight} in flight {excess:.0f} were refused"
            )
        self._calm_until = now + self._refusals.calm_s

    def _judge_engine(self, now: float, load: Mapping[str, Any]) -> None:
        """Judge vLLM's own figures, which are more precise than response times."""
        cache, queued = load["kv_cache"], load.get("engine_waiting", 0)
        running = load.get("engine_running", 0)
        if not (self._has_engine_figures and queued) or running > self._most_running:
            self._admitted_at = now
        self._has_engine_figures = True
        self._most_running = max(self._most_running, running)
        wanted, why = self.limit, ""
        if preempted := self._count_new("preemptions", load):
            wanted, why = CUT * self.limit, f"{preempted:.0f} preemptions"
        elif cache >= KV_FULL:
            wanted, why = CUT * self.limit, f"kv cache {cache:.2f}"
        is_waiting = queued > max(2, 0.25 * running) and self._is_drained(load)
        if is_waiting and now - self._admitted_at >= ADMITTED_S:
            left = load.get("in_flight", self.limit) - queued + 0.1 * running
            if left < wanted:
                wanted, why = left, f"{queued:.0f} wait in vLLM's queue"
        if why:
            self._cut(now, wanted, why)
        if cache >= KV_HIGH or queued > 0:
            self._hold = self._hold or f"kv cache {cache:.2f}, {queued:.0f} queued"

    def _is_drained(self, load: Mapping[str, Any]) -> bool:
        """Whether no more is in flight than the limit allows since its last cut."""
        return load.get("in_flight", 0) <= int(self.limit) / FULL

    def _count_new(self, counter: str, load: Mapping[str, Any]) -> float:
        """Increase of a counter since the last load; 0 after a server restart."""
        if (value := load.get(counter)) is None:
            return 0.0
        before, self._counted[counter] = self._counted.get(counter, value), value
        return max(0.0, value - before)

    def _grow(self, now: float, in_flight: int, since: float) -> None:
        """Grow by what has ended, spread over the time of an answer: what was begun together ends
        together, and more is not begun together."""
        number = self._answers.take(self.limit, since)
        is_full = FULL * int(self.limit) <= in_flight <= int(self.limit) / FULL
        if self._hold or now < max(self._quiet_until, self._calm_until) or not is_full:
            return
        if self.is_opening:
            grown = self.limit + number
        else:
            factor = STEEP if self._is_steep else GROWTH
            grown = self.limit * factor ** (number / int(self.limit))
        self.limit = min(self.ceiling, max(self.limit, min(grown, self._top)))
        if self.limit >= REPORT * self._reported or self.limit == self.ceiling:
            self._report(now, "the whole limit was in flight")

    def _learn(self, now: float) -> None:
        """Bound the limit by the knee, with a margin; cut it if it is clearly above."""
        self._times.forget(now, self.limit)
        knee = self._times.knee()
        is_early = self.is_opening and self._answers.are_counted  # their times end the doubling
        if knee is None or self._has_engine_figures or (is_early and not knee.is_sure):
            self._top = math.inf
        elif not knee.is_sure:
            self._top = REPORT * EXPLORED * knee.at
        else:
            self._is_steep = False
            self._top = (CUT if knee.is_lowest else ROOM) * knee.at
            if int(self.limit) > max(1.1 * self._top, self._top + 1):
                most, at = f"{knee.most:.0f} in flight", f"{knee.at:.0f}"
                why = f"{knee.slower:.1f} times slower with {most} than with {at}"
                self._cut(now, self._top, why)

    def _cut(self, now: float, wanted: float, why: str) -> None:
        if now < self._quiet_until:
            return
        self._is_steep, self._doubles_to = False, 0.0
        self._quiet_until = now + COOLDOWN_S
        self.limit = max(float(self.floor), min(self.limit - 1, wanted))
        self._report(now, why)

    def steer(self, now: float, asked: Parallelism, limit: int) -> None:
        """Go on within other bounds, from `limit`; what was learned about the models stays."""
        self.floor, self.start, self.ceiling = asked.floor, asked.start, asked.ceiling
        self._begin(now)
        self.limit = float(max(self.floor, min(limit, self.ceiling)))
        self._doubles_to = self.start
        self._report(now, f"parallelism was set to {asked.spell()}")

    def history(self) -> JsonObject:
        """The entry in the metrics file; times in seconds since the start of the run."""
        changes = [(round(at, 1), *rest) for at, *rest in self.changes]
        return {"changes": changes, "last": self()}

    def _begin(self, now: float) -> None:
        if self._began is None:
            self._began = now

    def _report(self, now: float, why: str) -> None:
        before, self._reported = self._reported, int(self.limit)
        if before != self._reported:
            began = now if self._began is None else self._began
            self.changes.append(Change(now - began, before, self._reported, why))
            self.num_changes += 1


def limiter_of(asked: Parallelism) -> Limiter:
    """The limiter for `num_samples_in_parallel`."""
    if asked.fixed:
        return Fixed(asked.fixed)
    return Adaptive(asked.floor, asked.start, asked.ceiling, seeks=asked == AUTO)


def steer(current: Limiter, now: float, asked: Parallelism) -> Limiter:
    """The limiter for another value during a run, which goes on from the current limit."""
    if asked.fixed:
        return Fixed(asked.fixed)
    limiter = current if isinstance(current, Adaptive) else limiter_of(asked)
    assert isinstance(limiter, Adaptive)
    limiter.steer(now, asked, current())
    return limiter
