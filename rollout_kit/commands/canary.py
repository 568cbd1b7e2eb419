"""A few of the rollouts that are owed, drawn at random and run, and what all will take by them.

They are rollouts like any other: they stay in the output, and the collection goes on behind them.
"""

import asyncio
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from ..collector.collection import Collection
from ..collector.plan import number_of
from ..endpoints.prices import TIERS
from ..metrics.intervals import MIN_DRAWN, Interval, share, total
from ..pacing.bill import dollars
from ..types import Attempt, Failure, JsonObject, Outcome, Rollout, Unverified
from .drain import End
from .report import FINISHED, INTERRUPTED, LIMIT_REACHED

LARGE = 2
"""A run of fewer rollouts than so many canaries is not worth a question."""


async def confirmed(collection: Collection) -> int | None:
    """Tell what the collection will take, and ask; None to go on, else the exit status. One that is
    small is simply run."""
    await collection.begin()
    command, plan = collection.run.command, collection.plan
    if plan.counts.to_collect < LARGE * command.num_canary and not plan.open_ended:
        return await collection.gone_through()
    if (status := await _told(collection)) is not None:
        return status
    say = collection.progress.say
    if collection.progress.as_json or not sys.stdin.isatty():
        say(
            f"There is nobody to ask whether to go on. This does:\n  {collection.run.command_line}",
            event="unconfirmed",
            command=collection.run.command_line,
        )
        return LIMIT_REACHED
    say("Collect the rest? [y/N]")
    if (await _line()).strip().lower() in ("y", "yes"):
        return None
    say(f"Nothing more was sent. This goes on:\n  {collection.run.command_line}")
    return LIMIT_REACHED


async def estimated(collection: Collection) -> int:
    """Tell what the collection will take; the exit status."""
    await collection.begin()
    if (status := await _told(collection)) is not None:
        return status
    line = collection.run.command_line
    collection.progress.say(f"This collects the rest:\n  {line}", event="next", command=line)
    return FINISHED


async def _told(collection: Collection) -> int | None:
    """Run the canary and print the estimate; the exit status where there is nothing to go on
    with."""
    run, progress, command = collection.run, collection.progress, collection.run.command
    if collection.plan.open_ended:
        await collection.plan.complete()
    attempts = await drawn(collection, command.num_canary, command.canary_seed)
    if not attempts:
        collection.finished = True
        progress.say("Nothing is owed: there is nothing to estimate.")
        return FINISHED
    canary = Canary(collection)
    collection.also = canary.add
    progress.start(len(attempts), 0)
    end = await collection.driven(iter(attempts))
    collection.finished = True
    status = {End.DONE: FINISHED, End.LIMIT: LIMIT_REACHED, End.INTERRUPTED: INTERRUPTED}[end]
    collection.report.note(collection.report.write_metrics(), status)
    is_whole = len(canary.samples) == len(attempts)
    if end is End.INTERRUPTED or not is_whole:  # those that have ended are the short ones
        progress.say(
            f"The canary was stopped before its end: no estimate. This goes on collecting:\n"
            f"  {run.command_line}"
        )
        return status
    if len(canary.samples) < MIN_DRAWN:
        progress.say("A single rollout is no ground for an estimate.")
        return None
    owed = collection.plan.counts.to_collect
    what = f"{number_of(len(attempts), 'rollout')} of {owed:,}, drawn at random"
    kept = run.journal.paths.main
    progress.say(f"Canary: {what} (canary_seed={command.canary_seed}); kept in {kept}")
    collection.report.reasons.say(progress)
    estimate = canary.estimate(owed, collection.limiter())
    text = "\n".join([f"Estimate for all {owed:,}, with 95 % intervals:", *estimate.lines()])
    progress.say(text, event="estimate", drawn=len(attempts), **estimate.figures())
    return None


async def drawn(collection: Collection, number: int, seed: int) -> list[Attempt]:
    """So many of the attempts that are owed, each as likely as any other, in input order: they are
    picked in one pass (Vitter's algorithm R)."""
    chooser, seen = random.Random(seed), count()
    chosen: list[tuple[int, Attempt]] = []
    for attempt in collection.owed(collection.run.reader.read()):
        if attempt is None:
            await asyncio.sleep(0)
            continue
        place = next(seen)
        if place < number:
            chosen.append((place, attempt))
        elif (slot := chooser.randrange(place + 1)) < number:
            chosen[slot] = (place, attempt)
    return [attempt for _, attempt in sorted(chosen, key=lambda each: each[0])]


class Sample(NamedTuple):
    """What one rollout took. `usd` is None where its cost is not known."""

    usd: float | None
    seconds: float
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Canary:
    """What was seen of each rollout; those that failed count too."""

    collection: Collection
    samples: list[Sample] = field(default_factory=list)
    failed: int = 0
    tiers: dict[str, float] = field(default_factory=dict)
    """US dollars under each service tier that a model's prices know, all rollouts together."""

    def add(self, outcome: Outcome) -> None:
        match outcome:
            case Failure(attempts=tried, cost_usd=cost):
                self.failed += 1
                seconds = sum(each.get("elapsed_s", 0.0) for each in tried)
                self.samples.append(Sample(cost or 0.0, seconds, 0, 0))
            case Unverified(error=None):
                return  # its verdict is still to come
            case Rollout(line=line) | Unverified(line=line):
                self.failed += isinstance(outcome, Unverified)
                block, usage = line["rollout"], line.get("usage") or {}
                seconds = block.get("duration_s", 0.0) + block.get("queue_s", 0.0)
                asked, given = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
                self.samples.append(Sample(block.get("cost_usd"), seconds, asked, given))
                self._add_tiers(line, block.get("cost_usd") or 0.0)

    def _add_tiers(self, line: JsonObject, usd: float) -> None:
        """What the rollout would have cost: its judges and failed attempts as they did."""
        tariffs = self.collection.run.tariffs
        if (tariff := tariffs.get(line["agent_ref"]["name"])) is None:
            return
        usage, turns = line.get("usage") or {}, line["rollout"].get("num_turns", 1)
        billed = tariff.cost(usage, line["response"].get("service_tier"), turns)
        for tier in {tier for each in tariffs.values() if each for tier in each.tiers}:
            would = usd - billed + tariff.cost(usage, tier, turns)
            self.tiers[tier] = self.tiers.get(tier, 0.0) + max(0.0, would)

    def estimate(self, number: int, parallel: int) -> "Estimate":
        """Of all `number` rollouts, the canary's included."""
        samples = self.samples
        costs = [each.usd for each in samples if each.usd is not None]
        cost = total(costs, number) if len(costs) == len(samples) else None
        tiers = {}
        if cost is not None and sum(costs):
            tiers = {tier: cost.times(usd / sum(costs)) for tier, usd in self.tiers.items()}
        seconds = [each.seconds for each in samples]
        slots, longest = min(parallel, number), max(seconds)
        return Estimate(
            number=number,
            parallel=slots,
            cost=cost,
            prices=sorted({each.words() for each in self.collection.run.tariffs.values() if each}),
            tiers={tier: tiers[tier] for tier in TIERS if tier in tiers},
            input_tokens=total([each.input_tokens for each in samples], number),
            output_tokens=total([each.output_tokens for each in samples], number),
            tokens=total([each.input_tokens + each.output_tokens for each in samples], number),
            seconds=Interval(*(max(each / slots, longest) for each in total(seconds, number))),
            failed=share(self.failed, len(samples)),
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `number` rollouts take; `cost` is None where it is not known."""

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

    def lines(self) -> list[str]:
        """As people read it."""
        rows = [*self._cost_rows()]
        parts = f"{_count(self.input_tokens.value)} in, {_count(self.output_tokens.value)} out"
        rows.append(_row("tokens", self.tokens, _count, parts))
        assumed = f"with {self.parallel:,} in flight, each as fast as in the canary"
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
        """For a program: `[value, low, high]` each."""
        return {
            "rollouts": self.number,
            "cost_usd": None if self.cost is None else [*self.cost],
            "tiers_usd": {tier: [*usd] for tier, usd in self.tiers.items()},
            "input_tokens": [*self.input_tokens],
            "output_tokens": [*self.output_tokens],
            "total_tokens": [*self.tokens],
            "seconds": [*self.seconds],
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


async def _line() -> str:
    """One line that is typed; the loop goes on meanwhile, and Ctrl-C ends it."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()
