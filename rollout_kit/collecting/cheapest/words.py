"""What a plan says about the ways of a run's requests."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

from ...config.keys import CollectConfig
from ...errors import number_of
from ...serving.endpoints.prices import BATCH, FLEX, STANDARD
from ..pacing.bill import dollars
from ..schedule import Later
from ..sources import TaskSource
from .ways import Calls, ModelWays, Ways

Counts = Mapping[tuple[str, Calls], int]
"""Agent and calls of a rollout → rollouts that are still to be collected."""


async def count_ways(source: TaskSource, ways: Ways) -> Counts:
    """How many rollouts make how many calls."""
    if source.is_open_ended:
        await source.count_rest()
    found = Counter[tuple[str, Calls]]()
    for attempt in source.find_owed(source.reader.read()):
        if isinstance(attempt, Later):
            await asyncio.sleep(0)
        else:
            agent = attempt.key.agent
            found[agent, ways.count_calls(agent, attempt.task.row)] += 1
    return found


def describe_ways(ways: Ways, counts: Counts | None, command: CollectConfig) -> Iterator[str]:
    """The lines of a plan; without `counts` the number of rollouts is not known before the run."""
    yield "Cheapest way, as the prices of the models have it:"
    for name, found in ways.models.items():
        yield f"  {name}: {'; '.join(_describe_offer(found))}"
    for name in ways.others:
        yield f"  {name}: as always, since its server has no key cheapest, or that is false"
    if counts is None:
        yield "  the rows come as the run goes: how many calls each makes is not known before"
    else:
        for (agent, calls), number in sorted(counts.items(), key=lambda each: each[0][1].value):
            yield f"  {_describe_rollouts(ways, agent, calls, number, command)}"
    judges = [
        name
        for name, found in ways.models.items()
        if not found.offer.batch and name not in {p.model_server for p in ways.agents.values()}
    ]
    if judges:
        yield f"  calls of {', '.join(judges)} for verdicts: in batches"


def describe_limit(command: CollectConfig) -> str:
    """The limit on the money of a run."""
    if command.max_cost_usd is None:
        return "  limit: none; +max_cost_usd=… sets one"
    return (
        f"  limit: {dollars(command.max_cost_usd)}; no rollout begins with which those that have"
        " begun are expected to cost more"
    )


def _describe_offer(found: ModelWays) -> Iterator[str]:
    offer, standard = found.offer, found.rates(STANDARD)
    for tier, lack, name in ((BATCH, offer.batch, "batches"), (FLEX, offer.flex, "flex")):
        rates = found.rates(tier)
        if lack:
            yield f"no {name}: {lack}"
        elif rates is None or standard is None:
            yield f"{name} at a price that is not known"
        else:
            yield f"{name} at {_share(rates.input, standard.input)} of the standard price"
    if offer.cache or standard is None:
        yield f"no cache: {offer.cache}"
    else:
        yield f"cached input at {_share(standard.cached_input, standard.input)}"


def _share(price: float, of: float) -> str:
    return f"{price / of:.0%}" if of else "no price"


def _describe_rollouts(
    ways: Ways, agent: str, calls: Calls, number: int, command: CollectConfig
) -> str:
    plan = ways.agents[agent]
    most = "up to " if command.goal else ""
    what = f"{most}{number_of(number, 'rollout')} of {agent}"
    how = _describe_way(ways.models.get(plan.model_server or ""), calls)
    if calls is Calls.UNKNOWN:
        said = "it has a loop of its own" if plan.opaque else "it does not say one_call"
        return f"{what} with an unknown number of calls, as {said}: {how}, as if they were several"
    if calls is Calls.SEVERAL:
        return f"{what} with several calls, as their rows have tools: {how}"
    why = "the agent makes no more" if plan.one_call == "always" else "their rows have no tools"
    return f"{what} with one call, as {why}: {how}"


def _describe_way(found: ModelWays | None, calls: Calls) -> str:
    """How the calls of the agent are sent."""
    if found is None:
        return "as always, as their model offers no choice"
    if found.takes_batch(calls):
        if calls is Calls.ONE:
            return "in batches"
        return "each call in a batch, which costs less than cached input at once"
    led = "" if found.offer.cache else ", repeats of a task after its first rollout"
    tier = "by flex" if found.tier == FLEX else "at the standard price"
    return f"at once {tier}{led}"
