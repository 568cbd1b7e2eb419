"""What is replayed of recorded rollouts: the tokens of each turn, the time of tools and verifier,
and how fast the model was while they were made."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from ...errors import ConfigError
from ...store.index import seconds_of
from ...store.rollouts import RolloutFile
from ...store.scope import group_of
from ...trajectory import ModelCall, read_turns
from ...types import Rollout

LEAST = 20
"""Rollouts below which a recording says too little."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A call of the model, and the time until the next one."""

    tokens: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """`rest_s` is the time that neither model, tools nor verifier took."""

    turns: tuple[RecordedTurn, ...]
    reward: float | None = None
    verify_s: float = 0.0
    rest_s: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class TokenSpeed:
    """Seconds of one token of a sequence: `alone_s`, and `each_s` more for each sequence that a
    replica computes at the same time."""

    alone_s: float
    each_s: float = 0.0

    def token_s(self, running: int) -> float:
        return self.alone_s + self.each_s * running


@dataclass(frozen=True, slots=True)
class CallSpan:
    """When a call was in flight, and the tokens that it made."""

    begin: float
    end: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Recording:
    """The groups of a file, and the calls of their rollouts."""

    groups: list[list[RecordedRollout]]
    spans: list[CallSpan]
    is_cut: bool = False
    """Whether the file has more rollouts than were read."""

    @property
    def num_rollouts(self) -> int:
        return sum(map(len, self.groups))

    @property
    def group_size(self) -> int:
        return statistics.mode(map(len, self.groups))


def read_recording(path: Path, limit: int | None = None) -> Recording:
    """The first rollouts of a file; ConfigError if they do not have what is needed."""
    groups: dict[object, list[RecordedRollout]] = {}
    spans: list[CallSpan] = []
    is_cut = False
    for number, rollout in enumerate(RolloutFile(path).rollouts()):
        if is_cut := number == limit:
            break
        every = read_turns(rollout.line["rollout"].get("turns"))
        calls = [call for call in every if call.by in (None, "policy")]
        groups.setdefault(group_of(rollout.key), []).append(_read_rollout(rollout, calls))
        spans += _list_spans(rollout, calls)
    found = Recording(list(groups.values()), spans, is_cut)
    if found.num_rollouts < LEAST:
        raise ConfigError(f"{path}: {found.num_rollouts} rollouts; {LEAST} are needed at least")
    if not any(span.tokens for span in spans):
        raise ConfigError(f"{path}: the rollouts have no tokens of their turns, or no times")
    return found


def _read_rollout(rollout: Rollout, calls: Sequence[ModelCall]) -> RecordedRollout:
    info = rollout.info
    turns = tuple(RecordedTurn(call.output or 0, call.tool_s or 0.0) for call in calls)
    verify_s = info.verify_s or 0.0
    known_s = sum((call.model_s or 0.0) + (call.tool_s or 0.0) for call in calls) + verify_s
    rest_s = max(0.0, (info.duration_s or known_s) - known_s)
    return RecordedRollout(turns, rollout.training_reward, verify_s, rest_s)


def _list_spans(rollout: Rollout, calls: Iterable[ModelCall]) -> Iterable[CallSpan]:
    began = seconds_of(rollout.info.started_at)
    for call in calls:
        if call.start_s is not None and call.model_s and not math.isnan(began):
            begin = began + call.start_s
            yield CallSpan(begin, begin + call.model_s, call.output or 0)


def fit_speed(spans: Sequence[CallSpan], places: int | None, replicas: int = 1) -> TokenSpeed:
    """How fast the model was. `places` is how many calls a replica computed at the same time; None:
    all of them, and the more there are, the slower is each."""
    if places is not None:
        busy = ((end - begin) * min(n, places * replicas) for begin, end, n in _count(spans))
        return TokenSpeed(math.fsum(busy) / sum(span.tokens for span in spans))
    return _fit_line(spans, replicas)


def _count(spans: Sequence[CallSpan]) -> Iterable[tuple[float, float, int]]:
    """Begin and end of each stretch of time, and the calls in flight during it."""
    changes = sorted(chain.from_iterable(((s.begin, 1), (s.end, -1)) for s in spans))
    number = 0
    for (begin, change), (end, _) in pairwise(changes):
        number += change
        yield begin, end, number


def _fit_line(spans: Sequence[CallSpan], replicas: int) -> TokenSpeed:
    """The line through the time of a token and the calls in flight, by least squares."""
    in_flight = CallsInFlight(spans)
    points = [
        (in_flight.mean(span) / replicas, (span.end - span.begin) / span.tokens)
        for span in spans
        if span.tokens
    ]
    xs, ys = zip(*points, strict=True)
    slope = 0.0
    if max(xs) > min(xs):
        slope = max(0.0, statistics.linear_regression(xs, ys).slope)
    alone_s = statistics.fmean(ys) - slope * statistics.fmean(xs)
    if alone_s < 0:  # all of the time is shared
        alone_s, slope = 0.0, statistics.fmean(ys) / statistics.fmean(xs)
    return TokenSpeed(alone_s, slope)


class CallsInFlight:
    """How many calls were in flight on average, in any stretch of time."""

    def __init__(self, spans: Sequence[CallSpan]) -> None:
        self._times, self._numbers, self._sums = list[float](), list[int](), [0.0]
        for begin, end, number in _count(spans):
            self._times.append(begin)
            self._numbers.append(number)
            self._sums.append(self._sums[-1] + (end - begin) * number)

    def mean(self, span: CallSpan) -> float:
        return (self._sum_until(span.end) - self._sum_until(span.begin)) / (span.end - span.begin)

    def _sum_until(self, time: float) -> float:
        at = bisect_right(self._times, time) - 1
        return self._sums[at] + (time - self._times[at]) * self._numbers[at]
