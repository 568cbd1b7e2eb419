"""NeMo Gym's environment servers: each of the usual kinds is a further name for an agent.

None of these is a process here. The collector does what they do: it seeds the session, asks the
agent, has the response verified and closes the session. So the name leads to the agent, and the
rollouts keep the name that was asked for. The code of another kind runs as an agent of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ...types import JsonObject
from ..registry import TYPES
from ..service import ServerRef

TYPE = "environment_servers"

ROUTES = "environment_server_routes"
"""Key at the top: taskset → the environment server that runs its tasks."""

AGENT = "agent_server"

_, RESOURCES, AGENTS = TYPES

LISTS_DATASETS = (AGENTS, RESOURCES, TYPE)
"""Types of servers whose blocks may list datasets."""


class LegacyAgent(BaseModel):
    """Keys of `legacy_agent`, which hands a row to its agent. It applies no limit."""

    model_config = ConfigDict(extra="forbid")

    agent_server: ServerRef
    max_concurrent_episodes: int | None = Field(None, gt=0)
    queue_timeout_seconds: float | None = Field(None, gt=0)
    default_episode_timeout_seconds: float | None = Field(None, gt=0)
    cleanup_timeout_seconds: float | None = Field(None, gt=0)


class SingleAgentTurn(LegacyAgent):
    """Keys of `single_agent_turn`, which asks one agent and has one resources server verify it."""

    resources_server: ServerRef
    resources_tool_transports: list[Literal["direct_http", "mcp"]] = []


KINDS: dict[str, type[LegacyAgent]] = {
    "legacy_agent": LegacyAgent,
    "single_agent_turn": SingleAgentTurn,
    "single_agent_turn_legacy": SingleAgentTurn,
}


TAKE_ROWS = ("legacy_agent", "single_agent_turn_legacy")
"""Kinds whose `/run` takes a row, as an agent's does."""


class EnvironmentServer(NamedTuple):
    """A name, the agent that it leads to, and what verifies its rollouts if it names that."""

    name: str
    agent: str
    resources: str | None = None
    timeout_s: float | None = None
    """Limit of one rollout."""


def find_environment_servers(values: JsonObject) -> dict[str, EnvironmentServer]:
    """Those of a valid configuration, by name."""
    found = {}
    for name, block in values.items():
        for kind, settings in implementations(block, TYPE):
            agent = _name_in(settings, AGENT)
            if kind in KINDS and agent is not None:
                is_turn = issubclass(KINDS[kind], SingleAgentTurn)
                found[name] = EnvironmentServer(
                    name,
                    agent,
                    _name_in(settings, "resources_server"),
                    settings.get("default_episode_timeout_seconds") if is_turn else None,
                )
    return found


def find_episode_servers(values: JsonObject) -> frozenset[str]:
    """Those whose own code makes the request to the model, so that a row needs none."""
    return frozenset(
        name
        for name, block in values.items()
        for kind, _ in implementations(block, TYPE)
        if kind not in KINDS
    )


def find_sources(values: JsonObject) -> dict[str, list[str]]:
    """What a row's `task_source` or its taskset may say → the agents that it can mean.

    A dataset's source is the server that lists it: an agent, an environment server, or a resources
    server, whose rows are those of the agents and environment servers that name it.
    """
    fronts = find_environment_servers(values)
    users: dict[str, list[str]] = {}
    for front in fronts.values():
        if front.resources is not None:
            users.setdefault(front.resources, []).append(front.name)
    fronted = {front.agent for front in fronts.values() if front.resources is not None}
    found = {name: [name] for name in fronts}
    for name, block in values.items():
        for _, settings in implementations(block, AGENTS):
            found[name] = [name]
            verifier = _name_in(settings, "resources_server")
            if verifier is not None and name not in fronted:
                users.setdefault(verifier, []).append(name)
    routes = values.get(ROUTES)
    by_taskset = {key: [name] for key, name in (routes or {}).items()}
    return {**users, **by_taskset, **found}


def find_verifier(values: JsonObject, name: str) -> str | None:
    """The resources server that an agent or an environment server names, if it names one."""
    block = values.get(name)
    for type_ in (AGENTS, TYPE):
        for _, settings in implementations(block, type_):
            if (found := _name_in(settings, "resources_server")) is not None:
                return found
    return None


class Listing(NamedTuple):
    """An entry of a dataset, and the agent or environment server that runs its rows."""

    agent: str
    entry: JsonObject


def list_datasets(values: JsonObject, agent: str | None) -> Iterator[Listing]:
    """The datasets that an agent or environment server runs, or all of them."""
    fronts, sources = find_environment_servers(values), find_sources(values)
    wanted = {agent, fronts[agent].agent} if agent in fronts else {agent}
    for name, block in values.items():
        for type_ in LISTS_DATASETS:
            for _, settings in implementations(block, type_):
                for entry in settings.get("datasets") or ():
                    if isinstance(entry, dict):
                        runs = _run_by(name, entry, sources)
                        if agent is None or not wanted.isdisjoint(runs):
                            listed = agent if agent in runs else runs[0]
                            yield Listing(str(listed), entry)


def _run_by(name: str, entry: JsonObject, sources: Mapping[str, list[str]]) -> list[str]:
    """The agents that a dataset of the server `name` can mean, the likeliest first."""
    if isinstance(pinned := entry.get("agent"), str):
        return [pinned]
    return sources.get(str(entry.get("taskset"))) or sources.get(name) or [name]


def implementations(block: Any, type_: str) -> Iterator[tuple[str, JsonObject]]:
    """The implementations in a block of one type, with their settings; most often one."""
    kinds = block.get(type_) if isinstance(block, dict) else None
    for kind, settings in kinds.items() if isinstance(kinds, dict) else ():
        if isinstance(settings, dict):
            yield kind, settings


def _name_in(settings: JsonObject, key: str) -> str | None:
    reference = settings.get(key)
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else None
