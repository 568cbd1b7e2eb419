"""The servers that a command works with: its own, or those of a running `ng_run`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ..config.inputs import how_to_get
from ..config.instances import AGENTS, MODELS
from ..config.keys.commands import CollectConfig, ReverifyConfig, RunConfig
from ..config.load import Config
from ..errors import ConfigError, PeerError
from ..launch.fleet import Upkeep
from ..launch.placement import HttpLimits, Nodes, placed
from ..launch.run import RunIdentity
from ..transport.access import token_for
from ..transport.cassette import Tapes
from ..transport.http import HttpClient
from ..transport.loop import beside
from ..transport.peers import Peers, over_http
from ..types import JsonObject, Say
from .head.client import HeadClient

SPARE_CONNECTIONS = 1100
"""Connections beyond the rollouts in flight: parked verdicts, closing sessions, health."""


WATCH_S, MISSED_ANSWERS = 2.0, 3
"""Seconds between two looks at a running `ng_run`, and failed looks until it counts as gone."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Running servers: how to reach them, the names of the agents, and their configuration."""

    peers: Peers
    agents: list[str]
    default_params: JsonObject
    values: JsonObject
    ends: list[asyncio.Task[str]] = field(default_factory=list)
    """Each ends, with the reason, when the run cannot go on: a server process of its own was given
    up, or its `ng_run` no longer answers."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the servers stop: no run can begin after that."""
    closing: set[asyncio.Event] = field(default_factory=set)
    """Runs that were left early and are still closing their output."""
    make_runner: Callable[..., Any] | None = None
    """What makes a runner that has workers run the attempts; None without workers."""
    plan: JsonObject = field(default_factory=dict)
    """What another process needs to reach them: their URLs, tokens and time limits."""


@asynccontextmanager
async def reach(
    config: Config[CollectConfig] | Config[ReverifyConfig],
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
        where = _servers_of_ng_run(config.command, say)
    async with where as servers:
        yield servers


@asynccontextmanager
async def _own_servers(
    config: Config[CollectConfig] | Config[ReverifyConfig],
    say: Say,
    host: str,
    elsewhere: Collection[str],
    nodes: Nodes | None,
) -> AsyncIterator[Servers]:
    command, agents = config.command, [each.name for each in config.of_type(AGENTS)]
    async with placed(
        config,
        default="local",
        host=host,
        limits=http_limits(command),
        upkeep=Upkeep(max_restarts=command.max_restarts, log_dir=command.log_dir, tell=say),
        run=RunIdentity.with_token(command.auth_token),
        tapes=Tapes.at(command.record, command.replay),
        start=not command.dry_run,
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
        )


@asynccontextmanager
async def _servers_of_ng_run(
    command: CollectConfig | ReverifyConfig, say: Say
) -> AsyncIterator[Servers]:
    for name in ("record", "replay", "unsafe_code", "max_restarts", "log_dir"):
        if name in command.model_fields_set:
            raise ConfigError(f"{name}: the servers are those of an ng_run: give it to that")
    limits = http_limits(command)
    client = HttpClient(**limits.of_client())
    try:
        try:
            head = await HeadClient.at(command.head_server, client, command.auth_token)
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
        for line in _shorter_limits(command, values):
            say(f"warning: {line}")
        defaults = values.get("responses_create_params") or {}
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
            yield Servers(peers, agents, defaults, values, [gone], plan=plan)
    finally:
        await client.close()


def _shorter_limits(command: CollectConfig | ReverifyConfig, values: JsonObject) -> Iterator[str]:
    """Time limits of this command that those of the `ng_run` make ineffective."""
    for name in ("request_timeout_s", "global_aiohttp_client_timeout_s"):
        own = getattr(command, name)
        theirs = values.get(name) or RunConfig.model_fields[name].default
        if name in command.model_fields_set and own and theirs and own > theirs:
            yield (
                f"{name}={own:g} holds for this command's requests only; between the servers it is"
                f" {theirs:g}: give it to the ng_run too"
            )


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


def http_limits(command: CollectConfig | ReverifyConfig) -> HttpLimits:
    parallel = command.num_samples_in_parallel
    limit = command.global_aiohttp_connector_limit
    if limit is None:  # an adaptive parallelism has no known bound
        most = parallel if isinstance(parallel, int) else parallel.fixed
        limit = 2 * most + SPARE_CONNECTIONS if most else 0
    return HttpLimits(
        limit=limit,
        limit_per_host=command.global_aiohttp_connector_limit_per_host or 0,
        request_timeout_s=command.global_aiohttp_client_timeout_s or command.request_timeout_s,
        rollout_timeout_s=command.rollout_timeout_s,
        max_reply_mb=command.max_reply_mb,
    )
