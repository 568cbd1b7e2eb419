"""Placement: start each instance in this process or in its own, or reach it by URL.

Placement is configuration: an instance behaves the same wherever it runs. `placed` is a context
with the running servers and the Peers that reach them.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config.instance_keys import is_url
from ..config.instances import AGENTS, MODELS
from ..config.load import Config, Instance
from ..serving import registry
from ..serving.service import Service
from ..transport.access import bearer
from ..transport.cassette import Cassette, Tapes
from ..transport.http import MAX_REPLY_MB, HttpClient
from ..transport.loop import gather_all
from ..transport.peers import Http, Local, Peers, Transport
from ..types import JsonObject
from .fleet import Fleet, Upkeep, demands_of
from .run import RunIdentity
from .sockets import Sockets, bind_all, url_of
from .supervise import Supervisor


@dataclass(frozen=True, slots=True)
class HttpLimits:
    limit: int = 0
    limit_per_host: int = 0
    request_timeout_s: float = 600
    rollout_timeout_s: float = 3600
    max_reply_mb: float = MAX_REPLY_MB

    def timeout_s(self, server_type: str) -> float:
        """Time limit of a request; one to an agent may take as long as a rollout."""
        return self.rollout_timeout_s if server_type == AGENTS else self.request_timeout_s

    def plan(self, instances: list[Instance]) -> JsonObject:
        """These limits in the plan of a server process."""
        return {
            "http": self.of_client(),
            "timeouts_s": {each.name: self.timeout_s(each.type) for each in instances},
        }

    def of_client(self) -> dict[str, Any]:
        """Arguments of an HttpClient."""
        limits = {"limit": self.limit, "limit_per_host": self.limit_per_host}
        return {**limits, "max_reply_mb": self.max_reply_mb}

    def local_timeout_s(self, server_type: str) -> float | None:
        """Time limit of a call in this process: only models need one; the limits of the rollout
        cover all other calls."""
        return self.request_timeout_s if server_type == MODELS else None


@dataclass(frozen=True, slots=True)
class Server:
    """One placed instance. `urls` is empty if no process but this one can reach it."""

    name: str
    type: str
    implementation: str
    urls: list[str]
    asks_token: bool = False
    processes: list[Supervisor] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.pid]

    @property
    def state(self) -> str:
        """The worst state among its processes."""
        states = {process.state for process in self.processes}
        return next((s for s in ("failed", "restarting", "starting") if s in states), "ready")

    @property
    def restarts(self) -> int:
        return sum(process.restarts for process in self.processes)


@dataclass(frozen=True, slots=True)
class Placed:
    """The running servers. `ends` are the tasks that supervise server processes: one is done, with
    the reason, once its process is given up."""

    peers: Peers
    servers: list[Server]
    ends: list[asyncio.Task[str]] = field(default_factory=list)
    log_dir: Path | None = None
    plan: JsonObject = field(default_factory=dict)
    """What another process needs to reach them: their URLs, tokens and time limits."""


@asynccontextmanager
async def placed(
    config: Config,
    *,
    default: str,
    host: str = "127.0.0.1",
    limits: HttpLimits,
    upkeep: Upkeep = Upkeep(),
    run: RunIdentity | None = None,
    tapes: Tapes = Tapes(),
    start: bool = True,
    elsewhere: Collection[str] = (),
) -> AsyncIterator[Placed]:
    """Context in which every instance is started and ready; all are stopped at the end.

    `default` is the placement of instances that name none: `local` or `process`. With `start` false
    the instances are created in this process but not started, so that they can be described; the
    same holds for models whose calls are replayed, and for instances that run `elsewhere`. The
    token of `run` protects servers that other machines can reach.
    """
    instances = list(config.instances.values())
    where = {each.name: placement_of(each, default) for each in instances}
    tapes = replace(tapes, models=[each.name for each in instances if each.type == MODELS])
    idle = frozenset([*tapes.unused_models, *elsewhere]) if start else frozenset(where)
    local = [each for each in instances if where[each.name] == "local" or each.name in idle]
    spawned = [each for each in instances if where[each.name] == "process" and each not in local]
    async with AsyncExitStack() as stack:
        client = HttpClient(**limits.of_client())
        stack.push_async_callback(client.close)
        run = run or RunIdentity()
        here = [each for each in local if spawned and each.name not in elsewhere]
        sockets = bind_all(instances, [*spawned, *here], host)
        for sock in itertools.chain.from_iterable(sockets.values()):
            stack.callback(sock.close)
        urls = {name: [url_of(sock) for sock in own] for name, own in sockets.items()}
        urls |= {each.name: [where[each.name]] for each in instances if "://" in where[each.name]}
        tokens = {each.name: each.token for each in instances if each.token}
        tokens |= dict.fromkeys(sockets, run.token)
        types = {each.name: each.type for each in instances if each.name in urls}
        transports: dict[str, Transport] = {
            name: Http(name, urls[name], client, limits.timeout_s(type_), bearer(tokens.get(name)))
            for name, type_ in types.items()
        }
        peers = Peers(transports, Cassette.of(tapes) if start else None)
        services = [_instantiate(each, peers) for each in local]
        transports |= {
            each.name: Local(each, timeout_s=limits.local_timeout_s(each.kind)) for each in services
        }
        plan: JsonObject = {"run_id": run.id, "token": run.token, "tapes": asdict(tapes)}
        plan |= {"urls": urls, "tokens": tokens, **limits.plan(instances)}
        fleet = Fleet(stack, upkeep)
        await fleet.start(spawned, sockets, plan, client, {*config.secrets, run.token})
        await _start(services, idle, sockets, run, stack)
        await gather_all(fleet.readiness())
        fleet.keep()
        servers = [
            _server_of(each, urls.get(each.name, []), fleet, asks_token=each.name in tokens)
            for each in instances
        ]
        yield Placed(peers, servers, fleet.ends, fleet.log_dir, plan)


def _server_of(instance: Instance, urls: list[str], fleet: Fleet, *, asks_token: bool) -> Server:
    name, type_, implementation = instance.name, instance.type, instance.implementation
    return Server(name, type_, implementation, urls, asks_token, fleet.of(instance))


def placement_of(instance: Instance, default: str) -> str:
    """`local`, `process` or the instance's URL."""
    if instance.num_workers > 1 or instance.process or instance.python:
        return "process"
    if is_url(instance.placement or ""):
        return str(instance.placement)
    if instance.env or demands_of(instance).own_process:
        return "process"
    return instance.placement or default


def _instantiate(instance: Instance, peers: Peers) -> Service:
    cls = registry.load(instance.type, instance.implementation)
    return cls(cls.Config.of(instance.settings, instance.secrets), peers, instance.name)


async def _start(
    services: list[Service],
    idle: Collection[str],
    sockets: Sockets,
    run: RunIdentity,
    stack: AsyncExitStack,
) -> None:
    """Start the services of this process concurrently, except the idle ones; listen on the sockets
    of those that other processes must reach."""
    started = [each for each in services if each.name not in idle]
    for service in started:
        stack.push_async_callback(service.stop)
    await gather_all(service.start() for service in started)
    for service in services:
        if service.name in sockets:
            [sock] = sockets[service.name]
            await stack.enter_async_context(service.serving(sock, run.id, run.token))
