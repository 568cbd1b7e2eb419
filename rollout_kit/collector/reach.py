"""The servers that a collection works with: its own, or those of a running `ng_run`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..config.instances import AGENTS
from ..config.keys.commands import CollectConfig, ReverifyConfig
from ..config.load import Config
from ..endpoints.prices import Tariff
from ..errors import ConfigError, suggest
from ..launch.fleet import Upkeep
from ..launch.head import HeadClient
from ..launch.placement import HttpLimits, placed
from ..launch.run import RunIdentity
from ..serving import registry
from ..store.manifest import fingerprint_of
from ..transport.access import bearer
from ..transport.cassette import Tapes
from ..transport.http import HttpClient
from ..transport.peers import Http, Peers
from ..types import JsonObject
from .rollout import AgentPlan

SPARE_CONNECTIONS = 1100
"""Beyond the rollouts in flight: parked verdicts, sessions being closed, health."""


WATCH_S, MISSED_ANSWERS = 2.0, 3
"""How often a running ng_run is looked for, and how often in vain until it is gone."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Peers by name, the names of the agents among them, and the configuration they run with."""

    peers: Peers
    agents: list[str]
    default_params: JsonObject
    values: JsonObject
    ends: list[asyncio.Task[str]] = field(default_factory=list)
    """Each is done, with the reason, when going on is pointless: a server process of this
    collection's own is given up, or the ng_run that it works through is gone."""


@asynccontextmanager
async def reached(
    config: Config, command: CollectConfig | ReverifyConfig, tell: Callable[[str], None]
) -> AsyncIterator[Reached]:
    """With `config_paths` the servers are started here, else the head server says where they
    are."""
    if config.instances:
        agents = [each.name for each in config.instances.values() if each.type == AGENTS]
        async with placed(
            config,
            default="local",
            limits=http_limits(command),
            upkeep=Upkeep(max_restarts=command.max_restarts, log_dir=command.log_dir, tell=tell),
            run=RunIdentity.with_token(command.auth_token),
            tapes=Tapes.at(command.record, command.replay),
            start=not command.dry_run,
        ) as running:
            yield Reached(running.peers, agents, config.default_params, config.values, running.ends)
        return
    for name in ("record", "replay"):
        if getattr(command, name) is not None:
            raise ConfigError(f"{name}: the servers are those of an ng_run: give it to that")
    if command.unsafe_code:
        raise ConfigError("unsafe_code: the servers are those of an ng_run: give it to that")
    limits = http_limits(command)
    client = HttpClient(limits.limit, limits.limit_per_host)
    try:
        head = await HeadClient.at(command.head_server, client, command.auth_token)
        servers, values = await head.instances(), await head.values()
        transports = {
            each["name"]: Http(
                each["name"],
                each["urls"],
                client,
                limits.timeout_s(each["server_type"]),
                bearer(head.token if each["asks_token"] else None),
            )
            for each in servers
            if each["urls"]
        }
        agents = [each["name"] for each in servers if each["server_type"] == AGENTS]
        for each in servers:
            if each["state"] == "failed":
                name = each["name"]
                tell(f"warning: the ng_run has given up server '{name}': its log says why")
        defaults = values.get("responses_create_params") or {}
        gone = asyncio.create_task(_gone(head))
        try:
            yield Reached(Peers(transports), agents, defaults, values, [gone])
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
    finally:
        await client.close()


async def _gone(head: HeadClient) -> str:
    """Returns, with what to say, once the ng_run answers no more."""
    missed = 0
    while missed < MISSED_ANSWERS:
        await asyncio.sleep(WATCH_S)
        missed = 0 if await head.answers() else missed + 1
    return f"the ng_run at {head.url} is gone: start it again, and then the same command"


def http_limits(command: CollectConfig | ReverifyConfig) -> HttpLimits:
    parallel = command.num_samples_in_parallel
    limit = command.global_aiohttp_connector_limit
    if limit is None:  # one that adapts itself may come to any width
        most = parallel if isinstance(parallel, int) else parallel.fixed
        limit = 2 * most + SPARE_CONNECTIONS if most else 0
    return HttpLimits(
        limit=limit,
        limit_per_host=command.global_aiohttp_connector_limit_per_host or 0,
        request_timeout_s=command.global_aiohttp_client_timeout_s or command.request_timeout_s,
        rollout_timeout_s=command.rollout_timeout_s,
    )


def chosen_agent(servers: Reached, command: CollectConfig) -> str | None:
    """The agent that every row runs with; None where the rows themselves say it."""
    agents, asked = servers.agents, command.agent_name
    if asked is None:
        listing = _datasets(servers.values, None).get(command.dataset or "", {})
        candidates = list(listing) or agents
        return candidates[0] if len(candidates) == 1 else None
    if asked not in agents:
        known = ", ".join(agents) or "none"
        raise ConfigError(
            f"agent_name: no agent is called '{asked}'{suggest(asked, agents)}; there are: {known}"
        )
    return asked


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent as the runner needs it, and the settings behind its fingerprint."""

    plan: AgentPlan
    settings: JsonObject
    tariff: Tariff | None
    """Of its model, as far as that server says."""


async def known_agent(peers: Peers, name: str, generation: JsonObject) -> KnownAgent:
    """What the agent and its servers say of themselves; `generation`: what this command adds to
    it."""
    about = await peers.describe(name)
    model_name, resources = about.get("model_server"), about.get("resources_server")
    model = await peers.describe(model_name) if model_name else {}
    verifier = await peers.describe(resources) if resources else {}
    own = {
        key: value
        for key, value in about.get("settings", {}).items()
        if key not in ("model_server", "resources_server")
    }
    settings = {
        "agent": own,
        "model": {"name": model.get("model"), **model.get("settings", {})},
        **generation,
    }
    plan = AgentPlan(
        resources=resources,
        model_server=model_name,
        settings=fingerprint_of(settings),
        verifier=verifier.get("verifier", ""),
        model=str(model.get("model") or ""),
        reverify=verifier.get("reverify", "never"),  # a foreign server does not say
        opaque=about.get("opaque", True),
    )
    return KnownAgent(plan, settings, Tariff.from_json(model.get("prices")))


def input_path(command: CollectConfig, values: JsonObject, agent: str | None) -> str:
    """The input file, by path or as the dataset of that name; ConfigError when neither leads to
    one."""
    if command.input_jsonl_fpath is not None and command.dataset is not None:
        raise ConfigError("input_jsonl_fpath and dataset were both given: leave one of them out")
    if command.input_jsonl_fpath:
        return _path(command.input_jsonl_fpath)
    if command.dataset is None:
        raise ConfigError("input_jsonl_fpath is missing: add +input_jsonl_fpath=tasks.jsonl")
    listed = _datasets(values, agent)
    if command.dataset not in listed:
        known = ", ".join(sorted(listed)) or "none"
        hint = suggest(command.dataset, listed)
        raise ConfigError(f"dataset: no '{command.dataset}'{hint}; the agent lists: {known}")
    if len(listed[command.dataset]) > 1:
        agents = " and ".join(listed[command.dataset])
        raise ConfigError(f"dataset: {agents} each list a '{command.dataset}': add +agent_name=…")
    [path] = listed[command.dataset].values()
    return str(registry.resolve_path(path) or path)


def stored_path(command: ReverifyConfig) -> str:
    """The file of rollouts; ConfigError when none is given."""
    if not command.input_jsonl_fpath:
        raise ConfigError("input_jsonl_fpath is missing: add +input_jsonl_fpath=rollouts.jsonl")
    return _path(command.input_jsonl_fpath)


def _path(given: str) -> str:
    if given == "-":
        return "-"
    expanded = str(Path(given).expanduser())
    return str(registry.resolve_path(expanded) or expanded)


def _datasets(values: JsonObject, agent: str | None) -> dict[str, dict[str, str]]:
    """Dataset's name → agent → path, of one agent or of all."""
    listed: dict[str, dict[str, str]] = {}
    for name, block in values.items():
        kinds = block.get(AGENTS) if isinstance(block, dict) and agent in (None, name) else None
        for settings in (kinds or {}).values():
            for dataset in settings.get("datasets") or ():
                if dataset.get("jsonl_fpath"):  # else it has to be fetched: ng_prepare_data does
                    listed.setdefault(dataset["name"], {})[name] = dataset["jsonl_fpath"]
    return listed
