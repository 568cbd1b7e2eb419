"""How the requests of each rollout are sent where model servers let the run choose.

Rollouts with one call, and the calls of judges, go into batches. Rollouts with several are sent at
once, so that each call reads what the one before has put into the cache; unless batches cost less
than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ...config.keys import CollectConfig
from ...errors import ConfigError, RolloutError
from ...launch.reach import Servers
from ...serving.batches.offers import Offer
from ...serving.endpoints.prices import BATCH, FLEX, STANDARD, Rates, Tariff
from ...types import Attempt, JsonObject
from ..agents import AgentPlan


class Calls(Enum):
    """How many calls of the model a rollout makes, as far as it is known before."""

    ONE = "one"
    SEVERAL = "several"
    UNKNOWN = "unknown"


class ModelWays(NamedTuple):
    """What a model server offers, at these prices."""

    offer: Offer
    tariff: Tariff | None

    def rates(self, tier: str) -> Rates | None:
        """Those of short requests; None if they are unknown."""
        steps = self.tariff.tiers.get(tier) if self.tariff else None
        return steps[0] if steps else None

    @property
    def tier(self) -> str:
        """The service tier of requests that are sent at once."""
        return STANDARD if self.offer.flex else FLEX

    def takes_batch(self, calls: Calls) -> bool:
        """Whether rollouts with so many calls go into batches."""
        if self.offer.batch:
            return False
        if calls is Calls.ONE:
            return True
        batch, at_once = self.rates(BATCH), self.rates(self.tier)
        if batch is None or at_once is None:
            return False
        read = at_once.input if self.offer.cache else at_once.cached_input
        costs_more = at_once.input > batch.input or at_once.output > batch.output
        return costs_more and read >= batch.input


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of a run; without models that let it choose, all that can goes into batches."""

    models: Mapping[str, ModelWays] = field(default_factory=dict)
    """Model server → what it offers."""
    others: tuple[str, ...] = ()
    """Model servers that offer nothing."""
    agents: Mapping[str, AgentPlan] = field(default_factory=dict)
    with_tools: frozenset[str] = frozenset()
    """Agents whose resources server gives tools to rows that name none."""

    @property
    def is_on(self) -> bool:
        """Whether there is something to choose."""
        return bool(self.models)

    @property
    def tier(self) -> str:
        """The service tier that requests outside of batches may have."""
        return FLEX if self.is_on else ""

    def count_calls(self, agent: str, row: JsonObject) -> Calls:
        """How many calls a rollout of this row makes."""
        plan = self.agents[agent]
        if plan.opaque or plan.one_call not in ("always", "without_tools"):
            return Calls.UNKNOWN
        if plan.one_call == "always":
            return Calls.ONE
        given = row["responses_create_params"]
        has_tools = bool(given["tools"]) if "tools" in given else agent in self.with_tools
        return Calls.SEVERAL if has_tools else Calls.ONE

    def takes_batch(self, attempt: Attempt) -> bool:
        """Whether the calls of the agent go into batches where its model has them."""
        agent = attempt.key.agent
        found = self.models.get(self.agents[agent].model_server or "") if self.models else None
        if found is None:
            return True
        return found.takes_batch(self.count_calls(agent, attempt.task.row))


ALL_ALIKE = Ways()
"""No choice."""


async def find_ways(
    servers: Servers, plans: Mapping[str, AgentPlan], command: CollectConfig
) -> Ways:
    """What the model servers of a run let it choose; ConfigError if the command has keys that do
    not go with it."""
    peers, models, others = servers.peers, dict[str, ModelWays](), list[str]()
    names = [*(plan.model_server for plan in plans.values()), *servers.models]
    for name in filter(None, dict.fromkeys(names)):
        try:
            about = await peers.describe(name)
        except RolloutError:  # what a run needs of it is asked for elsewhere
            continue
        if (offer := Offer.from_json(about.get("cheapest"))) is None:
            others.append(name)
        else:
            models[name] = ModelWays(offer, Tariff.from_json(about.get("prices")))
    if not models:
        return ALL_ALIKE
    _check(command)
    with_tools = [name for name, plan in plans.items() if await _offers_tools(servers, plan)]
    return Ways(models, tuple(others), plans, frozenset(with_tools))


def _check(command: CollectConfig) -> None:
    """ConfigError for keys that do not go with a choice of ways."""
    reasons = {
        "executor": command.executor != "local" and "its workers cannot wait for batches",
        "buffer": command.buffer is not None and "a trainer would wait for batches",
        "epochs": command.epochs != 1 and "it plans a single pass over the tasks",
    }
    for key, why in reasons.items():
        if why:
            raise ConfigError(f"cheapest: {key} does not go with it, as {why}: leave one out")


async def _offers_tools(servers: Servers, plan: AgentPlan) -> bool:
    """Whether rows without `tools` get some, as the agent does it."""
    if plan.one_call != "without_tools" or plan.resources is None:
        return False
    try:
        return bool(await servers.peers.call(plan.resources, "/tools", None, list))
    except RolloutError:
        return False
