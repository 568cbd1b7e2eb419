"""The servers that a command works with: its own, or those of a running `ng_run`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config import fields
from ..config.batching_models import place_batches
from ..config.inputs import how_to_get
from ..config.instances import AGENTS, MODELS
from ..config.keys import HttpClientConfig, ReachConfig, RunConfig
from ..config.load import Config
from ..config.sources import ENV_FILE
from ..errors import ConfigError, PeerError
from ..serving.endpoints.params import merge
from ..serving.nemo_gym.environment_servers import EnvironmentServer, find_environment_servers
from ..serving.transport.access import token_for
from ..serving.transport.cassette import Tapes
from ..serving.transport.http import HttpClient
from ..serving.transport.loop import beside
from ..serving.transport.peers import Peers, over_http
from ..store.files import OutputPaths
from ..types import JsonObject, Say
from .fleet import Upkeep
from .head_client import HeadClient
from .placement import HttpLimits, Nodes, placed
from .run import RunIdentity

SPARE_CONNECTIONS = 1100
"""Connections beyond the rollouts in flight: parked verdicts, closing sessions, health."""


OF_SERVERS = (
    "record",
    "replay",
    "batch",
    "cheapest",
    "unsafe_code",
    "mcp",
    "openenv",
    "max_restarts",
    "ready_timeout_s",
    "log_dir",
    "nemo_gym",
    "nemo_gym_code",
    "nemo_gym_python",
    "python_version",
    "install",
)
"""Keys about servers that this command starts itself."""

OF_BOTH = ("request_timeout_s", *fields.keys(HttpClientConfig))
"""Keys about requests. Each side follows its own."""

NO_RUN = (
    "start one with  ng_run '+config_paths=[…]', name its place with +head_server.port=…,"
    " or collect or verify without one: give that command '+config_paths=[…]'"
)
"""What to do where no ng_run answers."""

WATCH_S, MISSED_ANSWERS = 2.0, 3
"""Seconds between two looks at a running `ng_run`, and failed looks until it counts as gone."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Running servers: how to reach them, the names of the agents, and their configuration.

    Example:

        async with rk.servers(model=lambda params: "4", environment="string_match") as servers:
            print(servers.agents, servers.models)
    """

    peers: Peers
    agents: list[str]
    default_params: JsonObject
    values: JsonObject
    ends: list[asyncio.Task[str]] = field(default_factory=list)
    """Each ends, with the reason, when the run cannot go on: a server process of its own was given
    up, or its `ng_run` no longer answers."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the servers stop: no run can begin after that."""
    make_runner: Callable[..., Any] | None = None
    """What makes a runner that has workers run the attempts; None without workers."""
    plan: JsonObject = field(default_factory=dict)
    """What another process needs to reach them: their URLs, tokens and time limits."""
    models: list[str] = field(default_factory=list)
    """The names of the model servers."""

    @property
    def environments(self) -> dict[str, EnvironmentServer]:
        """Further names of the agents; without those that are agents of their own."""
        found = find_environment_servers(self.values)
        return {name: each for name, each in found.items() if each.agent in self.agents}

    @property
    def callable_agents(self) -> list[str]:
        """The names that rows and commands may give: those of the agents, and the further ones."""
        return list(dict.fromkeys([*self.agents, *self.environments]))


@asynccontextmanager
async def reach(
    config: Config[ReachConfig],
    say: Say,
    *,
    host: str = "127.0.0.1",
    elsewhere: Collection[str] = (),
    nodes: Nodes | None = None,
) -> AsyncIterator[Servers]:
    """Start the servers if `config_paths` are given, else ask the head server where they are.

    Instances that run `elsewhere` are only described; the others listen on `host`, or run on
    `nodes`.
    """
    if config.instances:
        where = _own_servers(config, say, host, elsewhere, nodes)
    else:
        where = _servers_of_ng_run(config, say)
    async with where as servers:
        yield servers


@asynccontextmanager
async def _own_servers(
    config: Config[ReachConfig],
    say: Say,
    host: str,
    elsewhere: Collection[str],
    nodes: Nodes | None,
) -> AsyncIterator[Servers]:
    command, agents = config.command, [each.name for each in config.of_type(AGENTS)]
    config = _with_folders(config)
    async with placed(
        config,
        default="local",
        host=host,
        limits=http_limits(command),
        upkeep=Upkeep(
            ready_timeout_s=command.ready_timeout_s,
            max_restarts=command.max_restarts,
            log_dir=command.log_dir,
            tell=say,
        ),
        run=RunIdentity.with_token(command.auth_token),
        tapes=Tapes.at(command.record, command.replay),
        start=command.starts_servers,
        elsewhere=elsewhere,
        nodes=nodes,
    ) as running:
        yield Servers(
            running.peers,
            agents,
            config.default_params,
            config.values,
            running.ends,
            plan=running.plan,
            models=[each.name for each in config.of_type(MODELS)],
        )


@asynccontextmanager
async def _servers_of_ng_run(config: Config[ReachConfig], say: Say) -> AsyncIterator[Servers]:
    command = config.command
    _check_keys_of_servers(config)
    limits = http_limits(command)
    client = HttpClient(**limits.of_client())
    try:
        try:
            head = await HeadClient.at(command.head_server, client, command.auth_token, NO_RUN)
        except ConfigError as error:
            raise ConfigError(
                f"{error}{how_to_get(getattr(command, 'agent_name', None))}"
            ) from None
        servers, values = await head.instances(), await head.values()
        agents = [each["name"] for each in servers if each["server_type"] == AGENTS]
        for each in servers:
            if each["state"] == "failed":
                name = each["name"]
                say(f"warning: the ng_run has given up server '{name}': its log says why")
        for line in _find_partial(config, values):
            say(f"warning: {line}")
        defaults = merge(values.get("responses_create_params") or {}, config.default_params)
        guarded = [each["name"] for each in servers if each["asks_token"] and head.token]
        plan: JsonObject = {
            "urls": {each["name"]: each["urls"] for each in servers if each["urls"]},
            "tokens": {name: token_for(name, head.token) for name in guarded},
            "http": limits.of_client(),
            "timeouts_s": {each["name"]: limits.timeout_s(each["server_type"]) for each in servers},
            "by_rollout": [each["name"] for each in servers if each["server_type"] == MODELS],
        }
        peers = Peers(over_http(plan, client))
        async with beside(_wait_until_gone(head, servers, peers)) as gone:
            models = plan["by_rollout"]
            yield Servers(peers, agents, defaults, values, [gone], plan=plan, models=models)
    finally:
        await client.close()


def _with_folders(config: Config[ReachConfig]) -> Config[ReachConfig]:
    """The configuration; models keep their batches beside the output."""
    if not (output := getattr(config.command, "output_jsonl_fpath", None)):
        return config
    folder = OutputPaths.of(Path(output).expanduser()).batches
    return replace(config, instances=place_batches(config.instances, folder))


def _check_keys_of_servers(config: Config[ReachConfig]) -> None:
    """ConfigError for a key that only an `ng_run` could follow. One in `env.yaml` is meant for
    that."""
    for name in OF_SERVERS:
        if name in config.command.model_fields_set and config.origins.get(name) != ENV_FILE:
            raise ConfigError(f"{name}: the servers are those of an ng_run: give it to that")


def _find_partial(config: Config[ReachConfig], values: JsonObject) -> Iterator[str]:
    """Keys of this command that the `ng_run`, whose configuration has `values`, does not follow."""
    command = config.command
    for name in (*OF_SERVERS, *OF_BOTH):
        own, default = getattr(command, name), RunConfig.model_fields[name].default
        theirs = values.get(name, default)
        if name not in command.model_fields_set or _spell(own) == _spell(theirs):
            continue
        if name in OF_SERVERS:
            yield f"{name} in env.yaml has changed since the ng_run began: restart that"
        else:
            yield (
                f"{name}={_spell(own)} holds for this command's own requests only; between the"
                f" servers it is {_spell(theirs)}: give it to the ng_run too"
            )


def _spell(value: Any) -> str:
    """A value as it is compared and shown, whatever its type."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


async def _wait_until_gone(head: HeadClient, servers: list[JsonObject], peers: Peers) -> str:
    """Wait until the `ng_run` no longer answers; returns the reason to stop. Meanwhile follow
    servers that move to other nodes."""
    missed = 0
    may_move = any(worker.get("place") for each in servers for worker in each["workers"])
    while missed < MISSED_ANSWERS:
        await asyncio.sleep(WATCH_S)
        missed = 0 if await head.answers() else missed + 1
        if may_move and not missed:
            with suppress(PeerError, ConfigError):
                for each in await head.instances():
                    if each["urls"]:
                        peers.move(each["name"], each["urls"])
    return f"the ng_run at {head.url} is gone: start it again, and then the same command"


def http_limits(command: ReachConfig) -> HttpLimits:
    limit = command.global_aiohttp_connector_limit
    if limit is None:  # an adaptive parallelism has no known bound
        most = command.most_in_flight
        limit = 2 * most + SPARE_CONNECTIONS if most else 0
    return HttpLimits(
        limit=limit,
        limit_per_host=command.global_aiohttp_connector_limit_per_host or 0,
        request_timeout_s=command.global_aiohttp_client_timeout_s or command.request_timeout_s,
        rollout_timeout_s=command.rollout_timeout_s,
        max_reply_mb=command.max_reply_mb,
        verify_timeout_s=command.longest_verification_s,
    )
