"""One moment of a run: the only statement of its progress. Plain values, which are JSON.

Each figure is declared once, with its text, where it comes from, and its names in Prometheus and in
trackers. The bar, the pages, `ng_ctl`, the exposition, trackers, the report and the files of a run
read this value. None means that a value is not known, or that there is none.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson

from ..pacing.bottleneck import shorten

T = TypeVar("T")

State = Literal["running", "pausing", "paused", "stopping", "ended"]
"""`pausing`: what is in flight goes on; `paused`: nothing is in flight any more."""


MAX_CHANGES = 20


class Shown(NamedTuple):
    """What the declaration of a figure says, beside its name and type. In its texts `{label}` and
    `{name}` are those of the part that it is of."""

    about: str
    """What the reference says, and Prometheus' help."""
    metric: str = ""
    """Its name in the exposition, after `rollout_kit_`. That of a counter ends in `_total`."""
    curve: str = ""
    """Its name in trackers."""
    label: str = ""
    """Label of each value of a mapping, or of each part. A single number has its name as value."""
    curves_from: int = 1
    """Fewer parts have no curves."""
    of: Callable[[Any], Any] | None = None
    """Reads it from a `Moment`, if not the attribute of the same name."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of rewards with its 95 % interval."""

    value: Annotated[float, Shown("The mean.")]
    low: Annotated[float | None, Shown("Its lower end.", "reward_mean_low", "reward/low")]
    high: Annotated[float | None, Shown("Its upper end.", "reward_mean_high", "reward/high")]
    number: Annotated[int, Shown("Rollouts behind it.")]


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """The rollouts of a plan, with those of earlier runs."""

    planned: Annotated[
        int | None, Shown("All; null until counted.", "rollouts_planned", "rollouts/planned")
    ]
    is_endless: Annotated[bool, Shown("Whether the plan has no end.")]
    done: Annotated[int, Shown("On disk.", "rollouts_total", "rollouts/done", "status")]
    failed: Annotated[
        int,
        Shown(
            "Without a result: in this run, or permanently in an earlier one.",
            "rollouts_total",
            "rollouts/failed",
            "status",
        ),
    ]
    unverified: Annotated[
        int,
        Shown(
            "In this run, with a response whose verification failed.",
            "rollouts_total",
            "rollouts/unverified",
            "status",
        ),
    ]
    in_flight: Annotated[
        int, Shown("Rollouts that run.", "rollouts_in_flight", "rollouts/in_flight")
    ]
    parked: Annotated[
        int, Shown("Responses that wait for a verdict without a slot.", "rollouts_parked")
    ]
    owed: Annotated[int | None, Shown("Rollouts that have not begun.", "rollouts_owed")]
    missing: Annotated[int, Shown("Planned so far, and not on disk.")]
    refused: Annotated[
        int,
        Shown(
            "Those of `failed` that are not tried again.",
            of=lambda it: it.tally.refused + it.plan.refused,
        ),
    ]
    left_out: Annotated[
        int, Shown("Stored, and no running server can verify them.", of=lambda it: it.plan.left_out)
    ]
    malformed: Annotated[
        int, Shown("Lines of the input that are no task.", of=lambda it: it.plan.malformed)
    ]
    tasks: Annotated[int, Shown("Tasks so far.")]
    measured: Annotated[int, Shown("Planned so far, with what is on disk beyond the plan.")]
    pending: Annotated[int, Shown("Responses on disk that wait for a verdict.")]

    @property
    def ended(self) -> int:
        """Rollouts that this run does nothing more about: the step of a tracker."""
        return self.done + self.failed + self.unverified


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The rollouts of this run alone."""

    earlier: Annotated[int, Shown("Rollouts of the plan that were on disk before.")]
    wanted: Annotated[int | None, Shown("Rollouts that it is to finish; null until counted.")]
    rollouts: Annotated[int, Shown("With a result.", of=lambda it: it.tally.rollouts)]
    failed: Annotated[int, Shown("Without one.", of=lambda it: it.tally.failed)]
    reward: Annotated[float | None, Shown("Mean reward.", of=lambda it: it.tally.mean_reward)]
    requests_429: Annotated[
        int, Shown("Requests that a rate limit refused.", of=lambda it: it.spent.throttled)
    ]


@dataclass(frozen=True, slots=True)
class Speed:
    """Of this run. Those of tokens are null if it generates nothing."""

    rollouts_per_s: Annotated[
        float, Shown("Since the start.", of=lambda it: it.per_s(it.tally.rollouts))
    ]
    tokens_per_s: Annotated[
        float | None,
        Shown(
            "Input and output tokens, since the start.",
            of=lambda it: it.tokens_per_s(it.tally.tokens),
        ),
    ]
    output_tokens_per_s: Annotated[
        float | None,
        Shown("Since the start.", of=lambda it: it.tokens_per_s(it.tally.output_tokens)),
    ]
    recent_rollouts_per_s: Annotated[
        float, Shown("Over the last ten seconds.", curve="throughput/rollouts_per_s")
    ]
    recent_output_tokens_per_s: Annotated[
        float | None, Shown("Over the last ten seconds.", curve="throughput/output_tokens_per_s")
    ]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of this run, in US dollars."""

    usd: Annotated[
        float | None,
        Shown(
            "Cost of this run; null if a call has no price.",
            "cost_dollars_total",
            "cost/usd",
            of=lambda it: it.spent.cost_usd,
        ),
    ]
    usd_per_minute: Annotated[float | None, Shown("The same a minute.")]
    projected_usd: Annotated[
        float | None, Shown("Its cost in the end.", "cost_projected_dollars", "cost/projected_usd")
    ]
    tokens: Annotated[int, Shown("Tokens of its calls.", of=lambda it: it.spent.tokens)]
    calls: Annotated[int, Shown("Its model calls.", of=lambda it: it.spent.calls)]
    unpriced_calls: Annotated[int, Shown("Those without a price.", of=lambda it: it.spent.unpriced)]
    priced_usd_per_minute: Annotated[float, Shown("The same a minute.")]
    priced_usd: Annotated[float, Shown("Cost of the others.", of=lambda it: it.spent.usd)]


@dataclass(frozen=True, slots=True)
class Parallel:
    """The limit on what is in flight. `floor` and `ceiling` differ if it adapts."""

    limit: Annotated[
        int,
        Shown(
            "Limit on the rollouts in flight.",
            "parallelism_limit",
            "rollouts/limit",
            of=lambda it: it.run.limiter(),
        ),
    ]
    floor: Annotated[int, Shown("Its lowest value.")]
    ceiling: Annotated[int, Shown("Its highest value.")]
    why: Annotated[str, Shown("The reason of its last change; empty if there was none.")]
    changed_at_s: Annotated[float | None, Shown("When that was, since the start.")]

    @property
    def adapts(self) -> bool:
        return self.floor < self.ceiling


@dataclass(frozen=True, slots=True)
class Holdup:
    """What the slots wait for most."""

    part: Annotated[str, Shown("Its name, such as model or tools.")]
    share: Annotated[float, Shown("Its share of the time.")]
    sentence: Annotated[str, Shown("The same for people.")]

    def short(self) -> str:
        """`model 93%`: for the progress line."""
        return shorten(self.part, self.share)


@dataclass(frozen=True, slots=True)
class FailureClass:
    """The failures of this run with one class of error."""

    name: Annotated[str, Shown("The class.")]
    number: Annotated[
        int, Shown("Failures of this run, by class of error.", "failures_total", "errors/{name}")
    ]
    message: Annotated[str, Shown("The message of the last one.")]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rollout in flight, and what it waits for."""

    rollout: Annotated[str, Shown("As `+only=…` takes it.")]
    agent: Annotated[str, Shown("Its agent.")]
    seconds: Annotated[float, Shown("Since it began.")]
    stage: Annotated[str, Shown("What it waits for.")]


@dataclass(frozen=True, slots=True)
class RunPart:
    """An agent, or an arm."""

    name: Annotated[str, Shown("Its name.")]
    rollouts: Annotated[int, Shown("Rollouts of the {label} on disk.", "{label}_rollouts")]
    reward: Annotated[
        Mean | None,
        Shown("Mean reward of the {label}.", "{label}_reward_mean", "reward/{label}/{name}"),
    ]


@dataclass(frozen=True, slots=True)
class Ended:
    """A rollout that has ended lately."""

    rollout: Annotated[str, Shown("As `+only=…` takes it.")]
    agent: Annotated[str, Shown("Its agent.")]
    status: Annotated[Literal["verified", "unscored", "unverified", "failed"], Shown("How.")]
    reward: Annotated[float | None, Shown("Its reward.")]
    seconds: Annotated[float | None, Shown("Its duration.")]
    output_tokens: Annotated[int | None, Shown("Its output tokens.")]
    cost_usd: Annotated[float | None, Shown("Its cost.")]
    error: Annotated[str, Shown("Empty unless it failed.")]


@dataclass(frozen=True, slots=True)
class KnobChange:
    """What a person has changed during the run."""

    at: Annotated[str, Shown("When, in UTC.")]
    by: Annotated[str, Shown("Who.")]
    what: Annotated[str, Shown("The knob, or the rollout.")]
    old: Annotated[Any, Shown("Its value before.")]
    new: Annotated[Any, Shown("Its value after.")]

    def __str__(self) -> str:
        return f"{self.what}: {_spell(self.old)} → {_spell(self.new)}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment."""

    number: Annotated[int, Shown("Snapshots of the run so far.", of=lambda it: it.kept.number)]
    at: Annotated[str, Shown("The time, in UTC.")]
    run_id: Annotated[str, Shown("The id of the run.", of=lambda it: it.kept.run_id)]
    output: Annotated[str, Shown("The file of its rollouts; empty without one.")]
    pid: Annotated[int, Shown("Its process.")]
    state: Annotated[State, Shown("running, pausing, paused, stopping or ended.")]
    elapsed_s: Annotated[
        float,
        Shown(
            "Time since the run began.",
            "run_duration_seconds",
            "time/elapsed_s",
            of=lambda it: round(it.elapsed_s, 3),
        ),
    ]
    counts: Annotated[PlanCounts, Shown("The plan.", of=lambda it: make(PlanCounts, it))]
    this_run: Annotated[RunCounts, Shown("This run alone.", of=lambda it: make(RunCounts, it))]
    finished: Annotated[
        int, Shown("Ended in this run, with or without a result.", of=lambda it: it.tally.finished)
    ]
    reward: Annotated[
        Mean | None, Shown("Mean reward of all that is on disk.", "reward_mean", "reward/mean")
    ]
    speed: Annotated[Speed, Shown("Rates.", of=lambda it: make(Speed, it))]
    output_tokens: Annotated[
        int,
        Shown(
            "Output tokens of this run.",
            "output_tokens_total",
            "tokens/output",
            of=lambda it: it.tally.output_tokens,
        ),
    ]
    cost: Annotated[
        Cost | None,
        Shown(
            "Null if nothing has a price.",
            of=lambda it: None if it.run.runner.bill.is_empty else make(Cost, it),
        ),
    ]
    parallel: Annotated[
        Parallel, Shown("The limit on what is in flight.", of=lambda it: make(Parallel, it))
    ]
    max_cost_usd: Annotated[
        float | None, Shown("Limit on the cost.", of=lambda it: it.limits.budget.max_cost_usd)
    ]
    max_total_tokens: Annotated[
        int | None, Shown("Limit on the tokens.", of=lambda it: it.limits.budget.max_total_tokens)
    ]
    max_minutes: Annotated[
        float | None, Shown("Limit on the time.", of=lambda it: it.limits.max_minutes)
    ]
    holdup: Annotated[Holdup | None, Shown("The bottleneck.")]
    failures: Annotated[
        tuple[FailureClass, ...],
        Shown("The most frequent first.", label="class", of=lambda it: it.kept.failures),
    ]
    slowest: Annotated[tuple[Waiting, ...], Shown("Those in flight that began first.")]
    stages: Annotated[
        dict[str, int],
        Shown("Rollouts in flight, by what they wait for.", "waiting", label="stage"),
    ]
    agents: Annotated[tuple[RunPart, ...], Shown("Each agent.", label="agent", curves_from=2)]
    arms: Annotated[tuple[RunPart, ...], Shown("Each arm.", label="arm", curves_from=2)]
    gauges: Annotated[
        dict[str, float],
        Shown(
            "Of what works beside the run, such as a trainer.",
            curve="{name}",
            label="gauge",
            of=lambda it: dict(it.tally.gauges),
        ),
    ]
    alarms: Annotated[
        tuple[str, ...],
        Shown(
            "What a person should look at, the last first.",
            of=lambda it: tuple(it.tally.alarms[::-1]),
        ),
    ]
    tail: Annotated[
        tuple[Ended, ...],
        Shown("What has ended lately, the last first.", of=lambda it: it.kept.tail),
    ]
    changes: Annotated[
        tuple[KnobChange, ...],
        Shown(
            "What people have changed, the last first.", of=lambda it: it.kept.changes[:MAX_CHANGES]
        ),
    ]


def make(kind: type[T], moment: Any) -> T:
    """A value of a declared class, with each figure read from a `Moment`."""
    return kind(
        **{
            name: shown.of(moment) if shown.of else getattr(moment, name)
            for name, shown, _ in _declared(kind)
        }
    )


class Figure(NamedTuple):
    """A number that is known, under its names in Prometheus and in trackers."""

    value: float
    about: str
    metric: str
    curve: str
    labels: Mapping[str, str]


def figures_of(snapshot: Snapshot) -> Iterator[Figure]:
    """The numbers of a snapshot that have a name."""
    return (each for each in _walk(snapshot, {}, True) if each.metric or each.curve)


def _walk(found: Any, labels: Mapping[str, str], is_drawn: bool) -> Iterator[Figure]:
    for name, shown, _ in _declared(type(found)):
        value, label = getattr(found, name), shown.label
        if isinstance(value, int | float):
            yield _figure(value, shown, {label: name} if label else labels, is_drawn)
        elif isinstance(value, Mean):
            yield _figure(value.value, shown, labels, is_drawn)
            if not labels:
                yield from _walk(value, labels, is_drawn)
        elif isinstance(value, Mapping):
            yield from (_figure(each, shown, {label: key}, True) for key, each in value.items())
        elif isinstance(value, tuple) and label:
            is_many = len(value) >= shown.curves_from
            for part in value:
                yield from _walk(part, {label: part.name}, is_many)
        elif is_dataclass(value):
            yield from _walk(value, labels, is_drawn)


def _figure(value: float, shown: Shown, labels: Mapping[str, str], is_drawn: bool) -> Figure:
    def fill(text: str) -> str:
        for label, name in labels.items():
            text = text.replace("{label}", label).replace("{name}", name)
        return text

    curve = fill(shown.curve) if is_drawn else ""
    return Figure(value, fill(shown.about), fill(shown.metric), curve, labels)


@cache
def _declared(kind: type[Any]) -> list[tuple[str, Shown, Any]]:
    """Name, declaration and type of each figure of a class."""
    hints = get_type_hints(kind, include_extras=True)
    parts = {each.name: get_args(hints[each.name]) for each in fields(kind)}
    return [(name, shown, hint) for name, (hint, shown) in parts.items()]


TYPES = {
    **{bool: "true or false", int: "whole number", float: "number", str: "text"},
    **{NoneType: "null", dict: "object", tuple: "list", Literal: "text", Any: "any value"},
}


def describe(kind: type[Any] = Snapshot, before: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of each figure, for the reference."""
    for name, shown, hint in _declared(kind):
        choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        names = [TYPES.get(get_origin(each) or each, "object") for each in choices]
        yield f"{before}{name}", " or ".join(names), shown.about
        for inner in (choices[0], *get_args(choices[0])):
            if is_dataclass(inner) and isinstance(inner, type):
                label = shown.label or "{label}"
                for inside, type_name, about in describe(inner, f"{before}{name}."):
                    yield inside, type_name, about.replace("{label}", label)


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
