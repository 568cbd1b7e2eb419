"""One moment of a run, as pages, commands and trackers show it. Plain values: it is JSON as it is.

PlanCounts are of the whole plan, with the rollouts of earlier runs, unless they say otherwise. None
means that a value is not known, or that there is none.
"""

from dataclasses import dataclass
from typing import Any, Literal

import orjson

State = Literal["running", "pausing", "paused", "stopping", "ended"]
"""`pausing`: what is in flight goes on; `paused`: nothing is in flight any more."""


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """The rollouts of a plan, each in one of these states; `planned` is their sum."""

    planned: int | None
    """None while a long input is still counted, and without end."""
    is_endless: bool
    done: int
    """On disk."""
    failed: int
    """Without a result: in this run, or permanently in an earlier one."""
    unverified: int
    """In this run, with a response whose verification failed."""
    in_flight: int
    parked: int
    """With a response that waits for its verdict, without a place among those in flight."""
    owed: int | None
    """Not begun."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `number` rollouts, with its 95 % interval."""

    value: float
    low: float | None
    high: float | None
    number: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Of this run: since its start, and over the last ten seconds."""

    rollouts_per_s: float
    output_tokens_per_s: float | None
    """None for a run that generates nothing."""
    recent_rollouts_per_s: float
    recent_output_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Of this run, in US dollars."""

    usd: float | None
    usd_per_minute: float | None
    projected_usd: float | None
    tokens: int
    unpriced_calls: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """The limit on what is in flight. `floor` and `ceiling` differ if it adapts."""

    limit: int
    floor: int
    ceiling: int
    why: str
    """The reason of its last change; empty if it never changed."""
    changed_at_s: float | None
    """Seconds since the start of the run."""


@dataclass(frozen=True, slots=True)
class Holdup:
    """What the slots wait for most."""

    part: str
    share: float
    sentence: str


@dataclass(frozen=True, slots=True)
class FailureClass:
    """The failures of this run with one class of error, and the message of the last."""

    name: str
    number: int
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rollout in flight, and what it waits for."""

    rollout: str
    """As `+only=…` takes it."""
    agent: str
    seconds: float
    stage: str


@dataclass(frozen=True, slots=True)
class RunPart:
    """An agent, or an arm."""

    name: str
    rollouts: int
    reward: Mean | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A rollout that has ended lately."""

    rollout: str
    agent: str
    status: Literal["verified", "unscored", "unverified", "failed"]
    reward: float | None
    seconds: float | None
    output_tokens: int | None
    cost_usd: float | None
    error: str
    """Empty unless it failed."""


@dataclass(frozen=True, slots=True)
class KnobChange:
    """What a person has changed during the run."""

    at: str
    by: str
    what: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.what}: {_spell(self.old)} → {_spell(self.new)}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`number` counts the snapshots of a run."""

    number: int
    at: str
    """The time in UTC."""
    run_id: str
    output: str
    pid: int
    state: State
    elapsed_s: float
    counts: PlanCounts
    finished: int
    """Rollouts that have ended in this run, with and without a result."""
    reward: Mean | None
    speed: Speed
    output_tokens: int
    """Of this run."""
    cost: Cost | None
    parallel: Parallel
    max_cost_usd: float | None
    max_total_tokens: int | None
    max_minutes: float | None
    holdup: Holdup | None
    failures: tuple[FailureClass, ...]
    """The most frequent first."""
    slowest: tuple[Waiting, ...]
    """Those in flight that began first."""
    stages: dict[str, int]
    """What is waited for → attempts in flight."""
    agents: tuple[RunPart, ...]
    arms: tuple[RunPart, ...]
    gauges: dict[str, float]
    """Figures of what works beside the run, such as a trainer, by the names that trackers use."""
    alarms: tuple[str, ...]
    """What a person should look at, the last one first."""
    tail: tuple[Ended, ...]
    """The last one first."""
    changes: tuple[KnobChange, ...]
    """The last one first."""


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
