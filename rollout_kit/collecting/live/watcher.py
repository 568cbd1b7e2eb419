"""Follows a run and takes its snapshot, at most once a second, in the run's own loop.

Readers get what was computed last: any number of them costs the collection nothing. Snapshots of a
large plan take longer, and are taken the more rarely for it.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import orjson

from ...analysis.metrics.aggregate import Aggregate, interval, moments
from ...store.lines import now_text
from ...store.scope import name_of
from ...types import Failure, Outcome, Rollout, Unverified
from ..pacing.limiter import Adaptive
from ..run import Run
from .control import Control, state_of
from .figures import RunFigures
from .snapshot import (
    Cost,
    Ended,
    FailureClass,
    Holdup,
    KnobChange,
    Mean,
    Parallel,
    PlanCounts,
    RunPart,
    Snapshot,
    Speed,
    Waiting,
)

SHARE = 0.005
"""Most of the loop's time that snapshots may take."""

EVERY_S = 1.0

RECENT_S = 10.0

NUM_TAIL, NUM_SLOWEST = 20, 10

MAX_STAGES, MAX_CLASSES = 50, 50

MAX_MESSAGE = 300
"""Characters of an error that are shown."""

HISTORY = (
    "elapsed_s",
    "finished",
    "failed",
    "in_flight",
    "limit",
    "reward",
    "output_tokens",
    "usd",
)

MAX_POINTS = 600

Reader = Callable[[Snapshot], object]


class Watcher:
    """`snapshot` and `raw`, its JSON, are those of the last second; None before the first."""

    def __init__(
        self, run: Run, figures: RunFigures | None = None, control: Control | None = None
    ) -> None:
        self.run_id = uuid4().hex[:12]
        self.snapshot: Snapshot | None = None
        self.raw = b"null"
        self.num_taken = 0
        self.readers: list[Reader] = []
        """Called with each snapshot."""
        self._run, self._control = run, control
        self._figures = figures or RunFigures()
        self._ended: deque[Outcome] = deque(maxlen=NUM_TAIL)
        """Since the last snapshot: a few seconds' responses at most are held for it."""
        self._tail: deque[Ended] = deque(maxlen=NUM_TAIL)
        self._failures: dict[str, FailureClass] = {}
        self._past: deque[tuple[float, int, int]] = deque()
        """Time, rollouts, output tokens."""
        self._due = 0.0
        paths = run.collection.paths
        self.output = str(Path.cwd() / paths.main) if paths else ""
        self.history = b"[]"
        """JSON: past snapshots, in the columns of HISTORY."""
        self._points: list[tuple[float | None, ...]] = []
        self._spacing_s = EVERY_S
        run.observe(self)
        run.each_second.append(self.look)

    def begin(self) -> None:
        """Take the first snapshot."""
        if self._figures.run is None:
            counts = self._run.source.counts
            self._figures.start(counts.planned, counts.done, self._run)
        self.look()

    def end(self) -> None:
        """Take the last snapshot, of a run that has ended."""
        self._take(is_over=True)

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome."""
        self._ended.append(outcome)
        if not isinstance(outcome, Rollout) and (error := outcome.error) is not None:
            name = type(error).__name__
            known = self._failures.get(name)
            if known or len(self._failures) < MAX_CLASSES:
                number = known.number + 1 if known else 1
                self._failures[name] = FailureClass(name, number, f"{error}"[:MAX_MESSAGE])

    def look(self) -> None:
        """Take a snapshot if one is due."""
        if perf_counter() >= self._due:
            self._take()

    def _take(self, *, is_over: bool = False) -> None:
        began = perf_counter()
        self._figures.look()
        while self._ended:
            if (ended := _describe_end(self._ended.popleft())) is not None:
                self._tail.appendleft(ended)
        self.num_taken += 1
        self.snapshot = self._compute(began, is_over=is_over)
        self.raw = orjson.dumps(self.snapshot)
        self._remember(self.snapshot)
        for read in self.readers:
            read(self.snapshot)
        took = perf_counter() - began
        # the clock that calls this has a tick of a second
        self._due = began + max(0.9 * EVERY_S, took / SHARE)

    def _remember(self, now: Snapshot) -> None:
        """Add a point to the history. A long one keeps every second point."""
        points = self._points
        if points and now.elapsed_s - (points[-1][0] or 0) < 0.9 * self._spacing_s:
            points.pop()
        counts, reward, cost = now.counts, now.reward, now.cost
        values = {
            "elapsed_s": now.elapsed_s,
            "finished": now.finished,
            "failed": counts.failed,
            "in_flight": counts.in_flight,
            "limit": now.parallel.limit,
            "reward": reward.value if reward else None,
            "output_tokens": now.output_tokens,
            "usd": cost.usd if cost else None,
        }
        points.append(tuple(values[name] for name in HISTORY))
        if len(points) > MAX_POINTS:
            self._spacing_s *= 2
            del points[1:-1:2]
        self.history = orjson.dumps(points)

    def _compute(self, now: float, *, is_over: bool) -> Snapshot:
        run, figures = self._run, self._figures
        limits, cost = run.limits, figures.cost()
        held = figures.bottleneck
        changes = self._control.changes if self._control else []
        failures = sorted(self._failures.values(), key=lambda each: -each.number)
        return Snapshot(
            number=self.num_taken,
            at=now_text(),
            run_id=self.run_id,
            output=self.output,
            pid=os.getpid(),
            state="ended" if is_over else state_of(run),
            elapsed_s=round(figures.elapsed_s, 3),
            counts=self._counts(),
            finished=run.tally.finished,
            reward=_mean(run.metrics.agents.values()),
            speed=self._speed(now),
            output_tokens=run.tally.output_tokens,
            cost=Cost(**cost) if cost else None,
            parallel=_parallel(run, changes),
            max_cost_usd=limits.budget.max_cost_usd,
            max_total_tokens=limits.budget.max_total_tokens,
            max_minutes=limits.max_minutes,
            holdup=Holdup(held.part, round(held.share, 4), held.sentence) if held else None,
            failures=tuple(failures),
            slowest=tuple(_slowest(run, now)),
            stages=dict(run.stages().most_common(MAX_STAGES)),
            agents=tuple(_part(name, [each]) for name, each in run.metrics.agents.items()),
            arms=tuple(_part(name, each.values()) for name, each in run.metrics.arms.items()),
            gauges=dict(run.tally.gauges),
            alarms=tuple(run.tally.alarms[::-1]),
            tail=tuple(self._tail),
            changes=tuple(changes[: -NUM_TAIL - 1 : -1]),
        )

    def _counts(self) -> PlanCounts:
        run, source, tally = self._run, self._run.source, self._run.tally
        counts = source.counts
        failed = tally.failed + counts.refused
        if source.is_open_ended:
            planned, done = None, counts.done + tally.rollouts
        else:
            planned = counts.planned - counts.left_out
            done = counts.planned - source.num_missing(tally)
        schedule = run.schedule
        known = done, failed, tally.unverified, schedule.in_flight, schedule.num_parked
        owed = None if planned is None else max(0, planned - sum(known))
        is_endless = source.is_open_ended and run.is_counted
        return PlanCounts(planned, is_endless, *known, owed)

    def _speed(self, now: float) -> Speed:
        tally, past = self._run.tally, self._past
        past.append((now, tally.rollouts, tally.output_tokens))
        while len(past) > 2 and now - past[0][0] > RECENT_S:
            past.popleft()
        then, rollouts, tokens = past[0]
        passed = max(now - then, 1e-6)
        mean = self._figures.output_tokens_per_s
        return Speed(
            round(self._figures.rollouts_per_s, 3),
            None if mean is None else round(mean, 3),
            round((tally.rollouts - rollouts) / passed, 3),
            None if mean is None else round((tally.output_tokens - tokens) / passed, 3),
        )


def _mean(parts: Iterable[Aggregate]) -> Mean | None:
    parts = list(parts)
    whole = moments(parts, "reward")
    if not whole.count:
        return None
    low, high = interval(parts, "reward") or (None, None)
    return Mean(whole.mean, low, high, whole.count)


def _part(name: str, parts: Iterable[Aggregate]) -> RunPart:
    parts = list(parts)
    return RunPart(name, sum(part.rollouts for part in parts), _mean(parts))


def _parallel(run: Run, changes: list[KnobChange]) -> Parallel:
    limiter, limit = run.limiter, run.limiter()
    if not isinstance(limiter, Adaptive):
        who = next((each.by for each in reversed(changes) if each.what == "parallelism"), "")
        return Parallel(limit, limit, limit, who and f"set by {who}", None)
    last = limiter.changes[-1] if limiter.changes else None
    why, at = (last.why, round(last.at, 1)) if last else ("", None)
    return Parallel(limit, limiter.floor, limiter.ceiling, why, at)


def _slowest(run: Run, now: float) -> Iterable[Waiting]:
    for slot in islice(run.schedule.slots.values(), NUM_SLOWEST):
        if slot.attempt is not None:
            key = slot.attempt.key
            yield Waiting(name_of(key), key.agent, round(now - slot.began, 3), slot.place.stage)


def _describe_end(outcome: Outcome) -> Ended | None:
    """None for a response whose verdict is still to come."""
    rollout, agent = name_of(outcome.key), outcome.key.agent
    match outcome:
        case Rollout(info=info):
            status = "unscored" if outcome.reward is None else "verified"
            seconds, tokens, cost = info.duration_s, info.output_tokens, info.cost_usd
            return Ended(rollout, agent, status, outcome.reward, seconds, tokens, cost, "")
        case Unverified(info=info, error=error) if error is not None:
            seconds, tokens, cost = info.duration_s, info.output_tokens, info.cost_usd
            text = f"{error}"[:MAX_MESSAGE]
            return Ended(rollout, agent, "unverified", None, seconds, tokens, cost, text)
        case Failure(error=error):
            seconds = sum(each.get("elapsed_s", 0.0) for each in outcome.attempts)
            text = f"{error}"[:MAX_MESSAGE]
            return Ended(rollout, agent, "failed", None, seconds, None, outcome.cost_usd, text)
        case _:
            return None
