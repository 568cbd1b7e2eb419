"""One moment of a run: the only statement of its progress. Plain values, which are JSON.

Each figure is declared once, with its text, where it comes from, and its names in Prometheus and in
trackers. The bar, the pages, `ng_ctl`, the exposition, trackers, the report and the files of a run
read this value. None means that a value is not known, or that there is none.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson

from ..pacing.bottleneck import shorten

T = TypeVar("T")

State = Literal["running", "pausing", "paused", "stopping", "ended"]
"""`pausing`: what is in flight goes on; `paused`: nothing is in flight any more."""


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


def shown(about: str, metric: str = "", curve: str = "", label: str = "", **more: Any) -> Any:
    """A field with its declaration, whose parts are those of `Shown`."""
    return field(metadata={"shown": Shown(about, metric, curve, label, **more)})


@dataclass_transform(frozen_default=True, field_specifiers=(shown,))
def declared(kind: type[T]) -> type[T]:
    """A class of values whose fields are `shown`."""
    return dataclass(frozen=True, slots=True)(kind)


@declared
class Mean:
    """A mean of rewards with its 95 % interval."""

    value: float = shown("The mean.")
    low: float | None = shown("Lower end of its 95 % interval.", "reward_mean_low", "reward/low")
    high: float | None = shown("Upper end of its 95 % interval.", "reward_mean_high", "reward/high")
    number: int = shown("Rollouts that it is the mean of.")


@declared
class PlanCounts:
    """The rollouts of a plan, with those of earlier runs."""

    planned: int | None = shown(
        "Rollouts of the plan, as far as it is counted.", "rollouts_planned", "rollouts/planned"
    )
    is_endless: bool = shown("Whether the plan has no end.")
    done: int = shown("Rollouts on disk.", "rollouts_total", "rollouts/done", "status")
    failed: int = shown(
        "Rollouts without a result, in this run or permanently in an earlier one.",
        "rollouts_total",
        "rollouts/failed",
        "status",
    )
    unverified: int = shown(
        "Rollouts of this run whose verification failed.",
        "rollouts_total",
        "rollouts/unverified",
        "status",
    )
    in_flight: int = shown("Rollouts that run.", "rollouts_in_flight", "rollouts/in_flight")
    parked: int = shown("Responses that wait for a verdict without a slot.", "rollouts_parked")
    waiting: int = shown("Rollouts that wait for a batch.", "rollouts_waiting", "rollouts/waiting")
    owed: int | None = shown("Rollouts that have not begun.", "rollouts_owed")
    missing: int = shown("Rollouts planned so far that are not on disk.")
    refused: int = shown("Failed rollouts that are not tried again.")
    left_out: int = shown("Stored rollouts that no running server can verify.")
    malformed: int = shown("Malformed lines of the input.")
    tasks: int = shown("Tasks planned so far.")
    measured: int = shown("Rollouts planned so far, and those on disk beyond the plan.")
    pending: int = shown("Responses on disk that wait for a verdict.")

    @property
    def ended(self) -> int:
        """Rollouts that this run does nothing more about: the step of a tracker."""
        return self.done + self.failed + self.unverified


@declared
class RunCounts:
    """The rollouts of this run alone."""

    earlier: int = shown("Rollouts of the plan that were on disk before.")
    ended: int = shown("The same, and those that have ended.")
    total: int | None = shown("The same, and those that are still to end.")
    rollouts: int = shown("Rollouts with a result.", of=lambda it: it.tally.rollouts)
    failed: int = shown("Rollouts without one.", of=lambda it: it.tally.failed)
    reward: float | None = shown("Mean reward of this run.", of=lambda it: it.tally.mean_reward)
    requests_429: int = shown("Requests that a rate limit refused.")


@declared
class GroupCounts:
    """The groups whose rollouts are scored together."""

    planned: int = shown("Groups of the plan.", of=lambda it: it.groups.planned)
    scored: int = shown("Groups with a score.", of=lambda it: it.groups.tally.scored)
    failed: int = shown("Groups without one.", of=lambda it: len(it.groups.tally.failed))
    incomplete: int = shown("Groups that lack a rollout.", of=lambda it: it.groups.tally.incomplete)
    dropped: int = shown("Groups that are given up.", of=lambda it: it.groups.tally.dropped)


@declared
class Speed:
    """Of this run. Those of tokens are null if it generates nothing."""

    rollouts_per_s: float = shown("Rollouts a second.", of=lambda it: it.per_s(it.tally.rollouts))
    tokens_per_s: float | None = shown(
        "Input and output tokens a second.", of=lambda it: it.tokens_per_s(it.tally.tokens)
    )
    output_tokens_per_s: float | None = shown(
        "Output tokens a second.", of=lambda it: it.tokens_per_s(it.tally.output_tokens)
    )
    usd_per_minute: float = shown(
        "US dollars a minute, for the calls with a price.",
        of=lambda it: it.per_s(60 * it.spent.usd),
    )
    recent_rollouts_per_s: float = shown(
        "Rollouts a second, over the last ten seconds.", curve="throughput/rollouts_per_s"
    )
    recent_output_tokens_per_s: float | None = shown(
        "Output tokens a second, over the last ten seconds.", curve="throughput/output_tokens_per_s"
    )


@declared
class Cost:
    """Of this run, in US dollars."""

    usd: float | None = shown(
        "Cost of this run, if every call has a price.", "cost_dollars_total", "cost/usd"
    )
    usd_per_minute: float | None = shown("The same a minute, on average.")
    projected_usd: float | None = shown(
        "Expected cost of this run at its end.", "cost_projected_dollars", "cost/projected_usd"
    )
    tokens: int = shown("Input and output tokens of all calls.", of=lambda it: it.spent.tokens)
    calls: int = shown("Calls of models.", of=lambda it: it.spent.calls)
    unpriced_calls: int = shown("Calls without a price.", of=lambda it: it.spent.unpriced)
    priced_usd: float = shown("Cost of the calls with a price.", of=lambda it: it.spent.usd)


@declared
class Parallel:
    """The limit on what is in flight. `floor` and `ceiling` differ if it adapts."""

    limit: int = shown("Limit on the rollouts in flight.", "parallelism_limit", "rollouts/limit")
    floor: int = shown("The lowest limit that it may take.")
    ceiling: int = shown("The highest limit that it may take.")
    why: str = shown("Why it was last changed, or empty.")
    changed_at_s: float | None = shown("When that was, in seconds since the start.")

    @property
    def adapts(self) -> bool:
        return self.floor < self.ceiling


@declared
class Holdup:
    """What the slots wait for most."""

    part: str = shown("The part of the work, such as model or tools.")
    share: float = shown("Share of the time that it takes.")
    sentence: str = shown("The same in a sentence.")

    def short(self) -> str:
        """`model 93%`: for the progress line."""
        return shorten(self.part, self.share)


@declared
class FailureClass:
    """The failures of this run with one class of error."""

    name: str = shown("The class of the error.")
    number: int = shown(
        "Failures of this run, by class of error.", "failures_total", "errors/{name}"
    )
    message: str = shown("The message of the last one.")


@declared
class Waiting:
    """A rollout in flight, and what it waits for."""

    rollout: str = shown("As `+only=…` takes it.")
    agent: str = shown("Its agent.")
    seconds: float = shown("Seconds since it began.")
    stage: str = shown("What it waits for.")
    turns: int = shown("Model calls that its agent has reported.")
    last: str = shown("The last of them: its tools, or what the model said.")
    tokens: int = shown("Input and output tokens of its calls so far.")


@declared
class RunPart:
    """An agent, or an arm."""

    name: str = shown("Its name.")
    rollouts: int = shown("Rollouts of the {label} on disk.", "{label}_rollouts")
    reward: Mean | None = shown(
        "Mean reward of the {label}.", "{label}_reward_mean", "reward/{label}/{name}"
    )


@declared
class Ended:
    """A rollout that has ended lately."""

    rollout: str = shown("As `+only=…` takes it.")
    agent: str = shown("Its agent.")
    status: Literal["verified", "unscored", "unverified", "failed"] = shown(
        "verified, unscored, unverified or failed."
    )
    reward: float | None = shown("Its reward.")
    seconds: float | None = shown("Its duration in seconds.")
    output_tokens: int | None = shown("Its output tokens.")
    cost_usd: float | None = shown("Its cost in US dollars.")
    error: str = shown("Why it failed, or empty.")


@declared
class KnobChange:
    """What a person has changed during the run."""

    at: str = shown("When, in UTC.")
    by: str = shown("Who.")
    what: str = shown("The knob, or the rollout.")
    old: Any = shown("Its value before.")
    new: Any = shown("Its value after.")

    def __str__(self) -> str:
        return f"{self.what}: {_spell(self.old)} → {_spell(self.new)}"


@declared
class Snapshot:
    """A run at one moment.

    Example:

        def show(snapshot: rk.Snapshot) -> None:
            print(snapshot.this_run.ended, snapshot.this_run.reward, snapshot.left_s)


        await rk.collect(
            rows, model=lambda params: "4", environment="string_match", progress=show
        )
    """

    number: int = shown("Which snapshot of the run it is.")
    at: str = shown("The time, in UTC.")
    run_id: str = shown("The id of the run.")
    output: str = shown("The file of its rollouts, or empty.")
    pid: int = shown("The id of its process.")
    state: State = shown("running, pausing, paused, stopping or ended.")
    elapsed_s: float = shown("Time since the run began.", "run_duration_seconds", "time/elapsed_s")
    counts: PlanCounts = shown(
        "The whole plan, with the rollouts of earlier runs.", of=lambda it: make(PlanCounts, it)
    )
    this_run: RunCounts = shown("This run alone.", of=lambda it: make(RunCounts, it))
    group_counts: GroupCounts | None = shown(
        "Groups, if they are scored together.",
        of=lambda it: make(GroupCounts, it) if it.groups.is_on else None,
    )
    finished: int = shown("Rollouts that have ended in this run.")
    left_s: float | None = shown("Seconds to its end, at the present speed.")
    reward: Mean | None = shown("Mean reward of all that is on disk.", "reward_mean", "reward/mean")
    speed: Speed = shown("Speed of this run.", of=lambda it: make(Speed, it))
    output_tokens: int = shown("Output tokens of this run.", "output_tokens_total", "tokens/output")
    cost: Cost | None = shown("Cost of this run, if anything has a price.")
    parallel: Parallel = shown("The limit on what is in flight.", of=lambda it: make(Parallel, it))
    max_cost_usd: float | None = shown("Limit on the cost.")
    max_total_tokens: int | None = shown("Limit on the tokens.")
    max_minutes: float | None = shown("Limit on the time.")
    holdup: Holdup | None = shown("The bottleneck.")
    failures: tuple[FailureClass, ...] = shown(
        "Failures by class of error, the most frequent first.", label="class"
    )
    slowest: tuple[Waiting, ...] = shown("Rollouts in flight that began first.")
    stages: dict[str, int] = shown(
        "Rollouts in flight, by what they wait for.", "waiting", label="stage"
    )
    agents: tuple[RunPart, ...] = shown("Each agent.", label="agent", curves_from=2)
    arms: tuple[RunPart, ...] = shown("Each arm.", label="arm", curves_from=2)
    gauges: dict[str, float] = shown(
        "Figures of programs that work with the run, such as a trainer.",
        curve="{name}",
        label="gauge",
    )
    alarms: tuple[str, ...] = shown("What a person should look at, the last first.")
    tail: tuple[Ended, ...] = shown("What has ended lately, the last first.")
    changes: tuple[KnobChange, ...] = shown("What people have changed, the last first.")


def make(kind: type[T], moment: Any) -> T:
    """A value of a declared class, with each figure read from a `Moment`."""
    return kind(
        **{
            name: shown.of(moment) if shown.of else getattr(moment, name)
            for name, shown, _ in _list_declared(kind)
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
    for name, shown, _ in _list_declared(type(found)):
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
def _list_declared(kind: type[Any]) -> list[tuple[str, Shown, Any]]:
    """Name, declaration and type of each figure of a class."""
    hints = get_type_hints(kind)
    return [(each.name, each.metadata["shown"], hints[each.name]) for each in fields(kind)]


TYPES = {
    **{bool: "true or false", int: "whole number", float: "number", str: "text"},
    **{NoneType: "null", dict: "object", tuple: "list", Literal: "text", Any: "any value"},
}


def describe(kind: type[Any] = Snapshot, before: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of each figure, for the reference."""
    for name, shown, hint in _list_declared(kind):
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
