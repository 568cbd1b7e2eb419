"""Takes the snapshots of a run: at most one a second, in the run's own loop.

Readers get what was computed last: any number of them costs the collection nothing. What takes
longer with more rollouts on disk is computed the more rarely for it.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple
from uuid import uuid4

import orjson

from ...analysis.metrics.aggregate import Aggregate, interval, moments
from ...store.lines import now_text
from ...store.scope import name_of
from ...types import Failure, Outcome, Rollout, Unverified
from ..pacing.bottleneck import Bottleneck
from ..pacing.limiter import Adaptive, Limiter
from ..run import Run
from .control import Control, state_of
from .flight import name_last
from .snapshot import (
    Cost,
    Ended,
    FailureClass,
    Holdup,
    KnobChange,
    Mean,
    RunPart,
    Snapshot,
    State,
    Waiting,
    make,
)

SHARE = 0.005
"""Most of the loop's time that snapshots may take, and the same for what is on disk in them."""

EVERY_S = 1.0

RECENT_S = 10.0

NUM_TAIL, NUM_SLOWEST = 20, 10

MAX_STAGES, MAX_CLASSES = 50, 50

MAX_MESSAGE = 300
"""Characters of an error that are shown."""

HISTORY = (
    *("elapsed_s", "finished", "counts.failed", "counts.in_flight", "parallel.limit"),
    *("reward.value", "output_tokens", "cost.usd"),
)
"""Figures of the columns of a history."""

MAX_POINTS = 600

Reader = Callable[[Snapshot], object]


class OnDisk(NamedTuple):
    """Means over all that is on disk, and the responses that wait for a verdict."""

    reward: Mean | None
    agents: tuple[RunPart, ...]
    arms: tuple[RunPart, ...]
    pending: int

    @classmethod
    def of(cls, run: Run) -> "OnDisk":
        agents, arms = run.metrics.agents, run.metrics.arms
        pending = run.tally.unverified  # without an output, only this run knows them
        if run.collection.paths:
            pending = run.collection.journal.num_parked(run.source.is_of_this_run)
        return cls(
            _mean(agents.values()),
            tuple(_part(name, [each]) for name, each in agents.items()),
            tuple(_part(name, each.values()) for name, each in arms.items()),
            pending,
        )


class RecentRates(NamedTuple):
    """Growth a second, over the last RECENT_S."""

    rollouts: float = 0.0
    output_tokens: float = 0.0


class Moment:
    """What a snapshot is read from: a run as it is now, and what its watcher remembers of it."""

    def __init__(self, watcher: "Watcher", *, is_over: bool = False) -> None:
        run = self.run = watcher.run
        self.source, self.tally, self.groups = run.source, run.tally, run.scoring
        self.spent, self.elapsed_s = run.runner.bill.spent, round(run.meter.elapsed_s, 3)
        self.reward, self.agents, self.arms, self.pending = watcher.on_disk
        self.number, self.run_id, self.tail = watcher.num_taken, watcher.run_id, tuple(watcher.tail)
        self.failures = tuple(sorted(watcher.failures.values(), key=lambda each: -each.number))
        self.at, self.pid, self.output = now_text(), os.getpid(), watcher.output
        self.state: State = "ended" if is_over else state_of(run)
        self._count()
        self.ended = self.earlier + self.tally.finished
        self.total = None if self.wanted is None else self.earlier + self.wanted
        self._bill()
        self.finished, self.output_tokens = self.tally.finished, self.tally.output_tokens
        self.recent_rollouts_per_s, recent = watcher.recent
        self.recent_output_tokens_per_s = recent if self.source.generates else None
        self.left_s, left = None, (self.owed or 0) + self.in_flight + self.parked + self.waiting
        rate = self.recent_rollouts_per_s or self.per_s(self.tally.rollouts)
        if self.owed is not None and rate > 0 and self.state == "running":
            self.left_s = round(left / rate, 1)
        limiter = run.limiter
        self.limit = self.floor = self.ceiling = limiter()
        if isinstance(limiter, Adaptive):
            self.floor, self.ceiling = limiter.floor, limiter.ceiling
        self.why, self.changed_at_s = _last_change(limiter, changes := watcher.changes[::-1])
        self.max_cost_usd = run.limits.budget.max_cost_usd
        self.max_total_tokens = run.limits.budget.max_total_tokens
        self.max_minutes = run.limits.max_minutes
        held = watcher.held
        self.holdup = Holdup(held.part, round(held.share, 4), held.sentence) if held else None
        self.stages = dict(run.stages().most_common(MAX_STAGES))
        self.slowest = tuple(_slowest(run))
        self.gauges, self.alarms = dict(self.tally.gauges), tuple(self.tally.alarms[::-1])
        self.changes = tuple(changes[:NUM_TAIL])

    def _count(self) -> None:
        run, source, tally, plan = self.run, self.source, self.tally, self.source.counts
        is_open, schedule, measured = source.is_open_ended, run.schedule, run.metrics.rollouts
        self.planned = None if is_open else plan.planned - plan.left_out
        self.is_endless = is_open and run.is_counted
        self.done, self.missing = source.num_on_disk(tally), source.num_missing(tally)
        self.failed, self.unverified = tally.failed + plan.refused, tally.unverified
        self.in_flight, self.parked = schedule.in_flight, schedule.num_parked
        self.waiting = schedule.num_waiting
        known = self.failed + self.unverified + self.in_flight + self.parked + self.waiting
        self.owed = None if is_open else max(0, self.missing - plan.left_out - known)
        self.refused, self.left_out = tally.refused + plan.refused, plan.left_out
        self.malformed, self.tasks = plan.malformed, max(source.num_tasks, run.metrics.tasks)
        self.measured = max(measured, source.num_in_scope + max(0, measured - self.done))
        self.earlier, self.wanted = 0, run.num_given
        if self.wanted is None:
            self.earlier = plan.done
            self.wanted = None if self.planned is None else self.planned - plan.done

    def _bill(self) -> None:
        spent, finished = self.spent, self.tally.finished
        self.usd, self.requests_429 = spent.cost_usd, spent.throttled
        self.usd_per_minute = None if self.usd is None else self.per_s(60 * self.usd)
        self.projected_usd = None
        if self.usd is not None and self.wanted is not None and finished:
            self.projected_usd = self.usd * max(self.wanted, finished) / finished
        self.cost = None if self.run.runner.bill.is_empty else make(Cost, self)

    def per_s(self, number: float) -> float:
        """So much of the whole run, a second."""
        return number / self.elapsed_s if self.elapsed_s else 0.0

    def tokens_per_s(self, number: int) -> float | None:
        """The same of tokens; None for a run that generates none."""
        return self.per_s(number) if self.source.generates else None


def snapshot_of(run: Run) -> Snapshot:
    """The snapshot of a run that nobody watches."""
    return make(Snapshot, Moment(Watcher(run)))


class Watcher:
    """`snapshot` and `raw`, its JSON, are those of the last second; None before `begin`."""

    def __init__(self, run: Run, control: Control | None = None) -> None:
        paths = run.collection.paths
        self.run, self.run_id = run, ""
        self.output = str(Path.cwd() / paths.main) if paths else ""
        self.snapshot: Snapshot | None = None
        self.raw = b"null"
        self.num_taken = 0
        self.readers: list[Reader] = []
        """Called with each snapshot."""
        self.history = b"[]"
        """JSON: past snapshots, in the columns of HISTORY."""
        self.on_disk = OnDisk.of(run)
        self.tail: deque[Ended] = deque(maxlen=NUM_TAIL)
        self.failures: dict[str, FailureClass] = {}
        self.changes = control.changes if control else []
        self.recent = RecentRates()
        self.held: Bottleneck | None = None
        self._ended: deque[Outcome] = deque(maxlen=NUM_TAIL)
        """Since the last snapshot: a few seconds' responses at most are held for it."""
        self._past: deque[tuple[float, int, int]] = deque()
        """Time, rollouts, output tokens."""
        self._due = self._on_disk_due = 0.0
        self._points: list[list[float | None]] = []
        self._spacing_s = EVERY_S

    def begin(self) -> None:
        """Follow the run, and take the first snapshot."""
        self.run_id = uuid4().hex[:12]
        self.run.observe(self)
        self.run.each_second.append(self.look)
        self.look()

    def end(self) -> Snapshot:
        """Take the last snapshot, of a run that has ended."""
        self._on_disk_due = 0.0
        return self._take(is_over=True)

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome."""
        self._ended.append(outcome)
        if not isinstance(outcome, Rollout) and (error := outcome.error) is not None:
            name = type(error).__name__
            known = self.failures.get(name)
            if known or len(self.failures) < MAX_CLASSES:
                number = known.number + 1 if known else 1
                self.failures[name] = FailureClass(name, number, f"{error}"[:MAX_MESSAGE])

    def look(self) -> None:
        """Take a snapshot if one is due."""
        if perf_counter() >= self._due:
            self._take()

    def _take(self, *, is_over: bool = False) -> Snapshot:
        now, began = perf_counter(), thread_time()
        if now >= self._on_disk_due:
            self.on_disk = OnDisk.of(self.run)
            self._on_disk_due = now + (thread_time() - began) / SHARE
            began = thread_time()
        while self._ended:
            if (ended := _describe_end(self._ended.popleft())) is not None:
                self.tail.appendleft(ended)
        self.num_taken += 1
        self.snapshot = self._compute(is_over=is_over)
        self.raw = orjson.dumps(self.snapshot)
        self._remember(self.snapshot)
        for read in self.readers:
            read(self.snapshot)
        took = thread_time() - began
        # the clock that calls this has a tick of a second
        self._due = now + max(0.9 * EVERY_S, took / SHARE)
        return self.snapshot

    def _remember(self, now: Snapshot) -> None:
        """Add a point to the history. A long one keeps every second point."""
        points = self._points
        if points and now.elapsed_s - (points[-1][0] or 0) < 0.9 * self._spacing_s:
            points.pop()
        points.append([_find(now, name) for name in HISTORY])
        if len(points) > MAX_POINTS:
            self._spacing_s *= 2
            del points[1:-1:2]
        self.history = orjson.dumps(points)

    def _compute(self, *, is_over: bool) -> Snapshot:
        self.recent, self.held = self._rates(), self.run.meter.stable_verdict()
        return make(Snapshot, Moment(self, is_over=is_over))

    def _rates(self) -> RecentRates:
        tally, past, now = self.run.tally, self._past, perf_counter()
        past.append((now, tally.rollouts, tally.output_tokens))
        while len(past) > 2 and now - past[0][0] > RECENT_S:
            past.popleft()
        then, rollouts, tokens = past[0]
        passed = max(now - then, 1e-6)
        return RecentRates(
            (tally.rollouts - rollouts) / passed, (tally.output_tokens - tokens) / passed
        )


def _find(snapshot: Snapshot, name: str) -> float | None:
    found: Any = snapshot
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


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


def _last_change(limiter: Limiter, changes: Sequence[KnobChange]) -> tuple[str, float | None]:
    """Why the limit last changed, and when; empty and None if it never did."""
    if not isinstance(limiter, Adaptive):
        who = next((each.by for each in changes if each.what == "parallelism"), "")
        return who and f"set by {who}", None
    last = limiter.changes[-1] if limiter.changes else None
    return (last.why, round(last.at, 1)) if last else ("", None)


def _slowest(run: Run) -> Iterable[Waiting]:
    now = perf_counter()
    for slot in islice(run.schedule.slots.values(), NUM_SLOWEST):
        if slot.attempt is not None:
            key = slot.attempt.key
            yield Waiting(
                name_of(key),
                key.agent,
                round(now - slot.began, 3),
                slot.place.stage,
                len(slot.turns),
                name_last(slot.turns),
                slot.ledger.spent.tokens,
            )


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
