"""A few of the rollouts that are owed, drawn at random and run, and an estimate for all of them.

They are rollouts like any other: they stay in the output, and the collection continues after them.
"""

import asyncio
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from ..analysis.metrics.intervals import MIN_DRAWN, Interval, share, total
from ..collecting.cheapest.savings import recall_costs
from ..collecting.cheapest.words import count_ways, describe_limit, describe_ways
from ..collecting.counts import Counts
from ..collecting.ending import Ending
from ..collecting.pacing.bill import Bill, dollars
from ..collecting.pacing.budget import Budget
from ..collecting.plan import Collection
from ..collecting.results import Status, finish
from ..collecting.run import Run
from ..collecting.schedule import Later
from ..collecting.sources import TaskSource
from ..config.keys import CollectConfig
from ..errors import RolloutError, number_of
from ..serving.endpoints.prices import TIERS, Tariff
from ..types import Attempt, Failure, JsonObject, Outcome, Rollout, RolloutInfo, Unverified
from .drive import Ends, drive, make_run, read_line, run_to_end, say_reasons
from .progress import Progress

Planned = Collection[CollectConfig, TaskSource]

PACES = ("requests_per_minute", "tokens_per_minute")

SEED = 0
"""Draws the canary, so that an estimate that is repeated draws the same one."""

LARGE = 2
"""A run of fewer rollouts than this many canaries runs without a question."""


async def confirm(collection: Planned, ends: Ends, progress: Progress) -> Status | None:
    """Show what the prepared collection will take, and ask; None to go on. A small collection runs
    at once."""
    command, counts = collection.command, collection.source.counts
    is_long = collection.source.is_open_ended
    if counts.to_collect < LARGE * command.num_canary and not is_long:
        return await run_to_end(collection, ends, progress)
    if (status := await run_canary(collection, ends, progress)) is not None:
        return status
    say, again = progress.say, collection.lines.again
    if progress.as_json or not sys.stdin.isatty():
        say(
            f"There is no terminal to ask at. This command goes on:\n  {again}",
            event="unconfirmed",
            command=again,
        )
        return Status.LIMIT_REACHED
    say("Collect the rest? [y/N]")
    if (await read_line()).strip().lower() in ("y", "yes"):
        return None
    say(f"Nothing more was sent. This goes on:\n  {again}")
    return Status.LIMIT_REACHED


async def begin_cheaply(collection: Planned, progress: Progress) -> None:
    """Say how the requests of a run are sent, and what limits its cost."""
    source, command, ways = collection.source, collection.command, collection.runner.ways
    counts = await count_ways(source, ways)
    number = _size_canary(command, source.counts)
    canary = f"  canary: {number:,} rollouts at once, at the standard price, before the others"
    if not number:
        has_some = source.counts.done or source.counts.to_verify
        why = "the output has rollouts already" if has_some else "there are too few rollouts"
        canary = f"  canary: none, as {why}"
    lines = [*describe_ways(ways, counts, command), canary, describe_limit(command)]
    figures = {f"{agent} {calls.value}": each for (agent, calls), each in counts.items()}
    progress.say("\n".join(lines), event="cheapest", rollouts=figures, canary=number)
    known = recall_costs(collection.paths) if collection.paths else Bill()
    limits = command.max_cost_usd, command.max_total_tokens
    budget = Budget(*limits, known=known, is_careful=True)
    collection.parts = replace(collection.parts, budget=budget)


async def try_first(collection: Planned, ends: Ends, progress: Progress) -> Status | None:
    """Run a canary, without a question after it; a status if there is nothing to go on with."""
    if number := _size_canary(collection.command, collection.source.counts):
        return await run_canary(collection, ends, progress, number)
    return await run_to_end(collection, ends, progress)


SHARE, FEWEST = 10, 5
"""A canary that nobody asked for is at most this part of a run, and has this many rollouts."""


def _size_canary(command: CollectConfig, counts: Counts) -> int:
    """How many rollouts a run tries first. A limit needs to know what a rollout costs."""
    owed, has_limit = counts.to_collect, command.max_cost_usd or command.max_total_tokens
    if command.confirm:
        return command.num_canary if owed >= LARGE * command.num_canary else 0
    if counts.done or counts.to_verify or (owed < SHARE * FEWEST and not has_limit):
        return 0
    return min(command.num_canary, max(FEWEST, owed // SHARE))


async def estimate(collection: Planned, ends: Ends, progress: Progress) -> Status:
    """Show what the prepared collection will take."""
    if (status := await run_canary(collection, ends, progress)) is not None:
        return status
    line = collection.lines.again
    progress.say(f"This collects the rest:\n  {line}", event="next", command=line)
    return Status.FINISHED


async def run_canary(
    collection: Planned, ends: Ends, progress: Progress, number: int | None = None
) -> Status | None:
    """Run the canary and print the estimate; a status if there is nothing to go on with."""
    source, command = collection.source, collection.command
    if source.is_open_ended:
        await source.count_rest()
    attempts = await draw(source, number or command.num_canary, SEED)
    if not attempts:
        progress.say("Nothing is owed: there is nothing to estimate.")
        return Status.FINISHED
    run = make_run(collection, ends, progress, attempts)
    await run.warm_up()
    canary = Canary(collection.tariffs)
    run.observe(canary)
    await drive(run, progress)
    status = finish(run).status
    if run.ending is Ending.INTERRUPTED or len(canary.samples) < len(attempts):
        # those that have ended are the short ones
        progress.say(
            "The canary was stopped before its end: no estimate. This goes on collecting:\n"
            f"  {collection.lines.again}"
        )
        return status
    if not canary.answered:
        say_reasons(run, progress.say)
        tried = number_of(len(attempts), "rollout")
        none = f"No estimate: none of the {tried} of the canary has a response."
        if number:  # nobody asked for the canary, so it does not end the run
            progress.say(none)
            return None
        progress.say(f"{none} This tries again:\n  {collection.lines.again}")
        return status
    if len(canary.samples) < MIN_DRAWN:
        progress.say("A single rollout is no ground for an estimate.")
        return None
    owed = source.counts.to_collect
    what = f"{number_of(len(attempts), 'rollout')} of {owed:,}, drawn at random"
    kept = f"; kept in {collection.paths.main}" if collection.paths else ""
    progress.say(f"Canary: {what}{kept}")
    say_reasons(run, progress.say)
    found = canary.estimate(owed, run.limiter(), await _read_paces(run))
    text = "\n".join([f"Estimate for all {owed:,}, with 95 % intervals:", *found.lines()])
    progress.say(text, event="estimate", drawn=len(attempts), **found.figures())
    return None


async def _read_paces(run: Run) -> dict[str, float]:
    """`requests_per_minute` and `tokens_per_minute` that the model servers of this run may use, as
    far as a limit is known."""
    paces = dict[str, float]()
    for model in run.models():
        with suppress(RolloutError):  # a foreign server may not tell
            for load in await run.runner.peers.call_each(model, "/load"):
                for name in PACES:
                    if isinstance(pace := load.get(name), int | float) and pace > 0:
                        paces[name] = paces.get(name, 0.0) + pace
    return paces


async def draw(source: TaskSource, number: int, seed: int) -> list[Attempt]:
    """So many of the attempts that are owed, each with the same chance, in input order: one pass
    of reservoir sampling (Vitter's algorithm R)."""
    chooser, seen = random.Random(seed), count()
    chosen: list[tuple[int, Attempt]] = []
    for attempt in source.find_owed(source.reader.read()):
        if isinstance(attempt, Later):
            await asyncio.sleep(0)
            continue
        place = next(seen)
        if place < number:
            chosen.append((place, attempt))
        elif (slot := chooser.randrange(place + 1)) < number:
            chosen[slot] = (place, attempt)
    return [attempt for _, attempt in sorted(chosen, key=lambda each: each[0])]


class Sample(NamedTuple):
    """What one rollout took. `usd` is None if its cost is unknown."""

    usd: float | None
    seconds: float
    input_tokens: int
    output_tokens: int
    requests: int


@dataclass(slots=True)
class Canary:
    """One sample of each rollout; failed ones count too."""

    tariffs: Mapping[str, Tariff | None]
    samples: list[Sample] = field(default_factory=list)
    failed: int = 0
    answered: int = 0
    """Rollouts with a response."""
    tiers: dict[str, float] = field(default_factory=dict)
    """Service tier → US dollars that all samples would cost under it."""

    def take(self, outcome: Outcome) -> None:
        match outcome:
            case Failure(attempts=tried, cost_usd=cost):
                self.failed += 1
                seconds = sum(each.get("elapsed_s", 0.0) for each in tried)
                self.samples.append(Sample(cost or 0.0, seconds, 0, 0, len(tried)))
            case Unverified(error=None):
                return  # its verdict is still to come
            case Rollout(info=info, line=line) | Unverified(info=info, line=line):
                self.failed += isinstance(outcome, Unverified)
                self.answered += 1
                seconds = (info.duration_s or 0.0) + (info.queue_s or 0.0)
                tokens, turns = (info.input_tokens, info.output_tokens), info.num_turns
                self.samples.append(Sample(info.cost_usd, seconds, *tokens, turns or 1))
                self._add_tiers(info, line)

    def _add_tiers(self, info: RolloutInfo, line: JsonObject) -> None:
        """What the rollout would have cost under each tier; judges and failed attempts cost the
        same under all."""
        if (tariff := self.tariffs.get(info.key.agent)) is None:
            return
        usage = line.get("usage") or {}
        turns = 1 if info.num_turns is None else info.num_turns
        usd = info.cost_usd or 0.0
        billed = tariff.cost(usage, line["response"].get("service_tier"), turns)
        for tier in {tier for each in self.tariffs.values() if each for tier in each.tiers}:
            would = usd - billed + tariff.cost(usage, tier, turns)
            self.tiers[tier] = self.tiers.get(tier, 0.0) + max(0.0, would)

    def estimate(
        self, number: int, parallel: int, paces: Mapping[str, float] = MappingProxyType({})
    ) -> "Estimate":
        """What all `number` rollouts will take, those of the canary included. `paces` are those of
        PACES that a rate limit allows."""
        samples = self.samples
        costs = [each.usd for each in samples if each.usd is not None]
        cost = total(costs, number) if len(costs) == len(samples) else None
        tiers = {}
        if cost is not None and sum(costs):
            tiers = {tier: cost.times(usd / sum(costs)) for tier, usd in self.tiers.items()}
        seconds = [each.seconds for each in samples]
        slots, longest = min(parallel, number), max(seconds)
        tokens = total([each.input_tokens + each.output_tokens for each in samples], number)
        requests = total([each.requests for each in samples], number)
        limited = [
            (60 * used.value / paces[name], used.times(60 / paces[name]), name)
            for name, used in zip(PACES, (requests, tokens), strict=True)
            if name in paces
        ]
        time = Interval(*(max(each / slots, longest) for each in total(seconds, number)))
        slowest = max(limited, default=None)
        limit = ""
        if slowest and slowest[0] > time.value:
            time = Interval(*map(max, slowest[1], time))
            limit = f"{paces[slowest[2]]:,.0f} {slowest[2].replace('_per_', ' a ')}"
        return Estimate(
            number=number,
            parallel=slots,
            cost=cost,
            prices=sorted({each.words() for each in self.tariffs.values() if each}),
            tiers={tier: tiers[tier] for tier in TIERS if tier in tiers},
            input_tokens=total([each.input_tokens for each in samples], number),
            output_tokens=total([each.output_tokens for each in samples], number),
            tokens=tokens,
            seconds=time,
            rate_limit=limit,
            failed=share(self.failed, len(samples)),
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `number` rollouts take; `cost` is None if it is unknown."""

    number: int
    parallel: int
    cost: Interval | None
    prices: list[str]
    tiers: dict[str, Interval]
    input_tokens: Interval
    output_tokens: Interval
    tokens: Interval
    seconds: Interval
    failed: Interval
    rate_limit: str = ""
    """The limit that the time follows from; empty if the model is slower."""

    def lines(self) -> list[str]:
        """Text for people."""
        rows = [*self._cost_rows()]
        parts = f"{_count(self.input_tokens.value)} in, {_count(self.output_tokens.value)} out"
        rows.append(_row("tokens", self.tokens, _count, parts))
        assumed = f"with {self.parallel:,} in flight, each as fast as in the canary"
        if self.rate_limit:
            assumed = f"at the rate limit of {self.rate_limit}"
        rows.append(_row("time", self.seconds, _duration, assumed))
        rows.append(_row("failures", self.failed, lambda part: f"{part:.1%}", ""))
        return rows

    def _cost_rows(self) -> Iterator[str]:
        if self.cost is None:
            yield "  cost        not known: give the model server `prices`"
        elif not self.cost.value:
            yield "  cost        nothing: the model is one's own"
        else:
            alike = [tier for tier, usd in self.tiers.items() if _is_same(usd, self.cost)]
            note = f"at {alike[0]} prices" if alike else "as the canary was billed"
            yield _row("cost", self.cost, dollars, note)
            for tier, usd in self.tiers.items():
                if tier not in alike:
                    yield _row("", usd, dollars, f"at {tier} prices")
            for words in self.prices:
                yield f"  {'prices':<11} {words}"

    def figures(self) -> JsonObject:
        """Figures for a program: `[value, low, high]` each."""
        return {
            "rollouts": self.number,
            "cost_usd": None if self.cost is None else [*self.cost],
            "tiers_usd": {tier: [*usd] for tier, usd in self.tiers.items()},
            "input_tokens": [*self.input_tokens],
            "output_tokens": [*self.output_tokens],
            "total_tokens": [*self.tokens],
            "seconds": [*self.seconds],
            "rate_limit": self.rate_limit or None,
            "failed": [*self.failed],
        }


def _is_same(one: Interval, other: Interval) -> bool:
    return math.isclose(one.value, other.value, rel_tol=1e-6)


def _row(name: str, each: Interval, shown: Callable[[float], str], note: str) -> str:
    low, high = f"{shown(each.low)} …", shown(each.high)
    return f"  {name:<11} {shown(each.value):>9}  {low:>11} {high:<9} {note}".rstrip()


def _count(number: float) -> str:
    """`950`, `12 k`, `4.1 M`."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
