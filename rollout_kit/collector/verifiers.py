"""Who verifies the stored rollouts of which agent, and whose cannot be verified again.

Neither an agent nor the policy model is started: an agent's configuration names its resources
server.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from ..config.instances import AGENTS
from ..config.keys.commands import ReverifyConfig
from ..config.load import Config
from ..config.verification import needed, verifier_of
from ..errors import ConfigError, RolloutError, suggest
from ..transport.peers import Peers
from ..types import JsonObject
from .reach import Reached, reached
from .rollout import AgentPlan

AGAIN = "collect these rollouts again with ng_collect_rollouts"


@dataclass(frozen=True, slots=True)
class Verifiers:
    """`plans`: agent → how its rollouts are verified; `left_out`: agent → why they are not."""

    servers: Reached
    plans: dict[str, AgentPlan]
    left_out: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def reached_verifiers(
    config: Config, command: ReverifyConfig, agents: Collection[str], tell: Callable[[str], None]
) -> AsyncIterator[Verifiers]:
    """The resources servers of these agents: started here with `config_paths`, with the judges
    that they refer to, or those of a running `ng_run`."""
    if config.instances:
        known = {name: each for name, each in config.instances.items() if each.type == AGENTS}
        names = {name: verifier_of(each) for name, each in known.items()}
        servers = needed(config.instances, {names.get(agent) or "" for agent in agents})
        if not servers:
            raise ConfigError("\n".join(_unknown(agent, names) for agent in agents))
        async with reached(replace(config, instances=servers), command, tell) as here:
            yield await verifiers(here, names, agents)
        return
    async with reached(config, command, tell) as there:
        names = {name: await _told(there, name) for name in there.agents if name in agents}
        unasked = {name: None for name in there.agents if name not in agents}
        yield await verifiers(there, {**names, **unasked}, agents)


async def verifiers(
    servers: Reached, names: Mapping[str, str | None], agents: Collection[str]
) -> Verifiers:
    """`names`: agent → its resources server, of all agents that are known; `agents`: those whose
    rollouts are to be verified."""
    found = Verifiers(servers, {})
    for agent in agents:
        resources = names.get(agent)
        if resources is None:
            found.left_out[agent] = _unknown(agent, names)
            continue
        about = await servers.peers.describe(resources)
        mode = about.get("reverify")
        if mode in ("stateless", "replay"):
            verifier = about.get("verifier", "")
            found.plans[agent] = AgentPlan(resources, None, "", verifier, "", mode)
        elif mode == "never":
            found.left_out[agent] = (
                f"agent '{agent}': its resources server '{resources}' keeps a state that a stored"
                f" response does not bring back (reverify: never): {AGAIN}"
            )
        else:
            found.left_out[agent] = (
                f"agent '{agent}': its resources server '{resources}' does not say that a stored"
                f" response can be verified again (no 'reverify' in its /health): {AGAIN}"
            )
    return found


def _unknown(agent: str, names: Mapping[str, str | None]) -> str:
    if agent in names:
        return (
            f"agent '{agent}': its configuration names no resources_server: give it one, as"
            f" {agent}: {{responses_api_agents: {{…: {{resources_server: {{name: …}}}}}}}}"
        )
    known = ", ".join(names) or "none"
    return (
        f"agent '{agent}': none is called so here{suggest(agent, names)}; there are: {known}. Give"
        " the configuration that its rollouts were collected with"
    )


async def _told(servers: Reached, agent: str) -> str | None:
    """The resources server of a running agent: as the configuration says, or the agent itself."""
    blocks = servers.values.get(agent)
    kinds = blocks.get(AGENTS) if isinstance(blocks, dict) else None
    settings = next(iter(kinds.values()), None) if isinstance(kinds, dict) else blocks
    named = settings.get("resources_server") if isinstance(settings, dict) else None
    if isinstance(named, dict) and isinstance(named.get("name"), str):
        return named["name"]
    return await _asked(servers.peers, agent)


async def _asked(peers: Peers, agent: str) -> str | None:
    try:
        about: JsonObject = await peers.describe(agent)
    except RolloutError:
        return None  # an agent that is down has nothing to say, and nothing to do here
    return about.get("resources_server")
