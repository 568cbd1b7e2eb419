"""Placement: start each instance in this process or in its own, or reach it by URL.

Placement is configuration: an instance behaves the same wherever it runs. `placed` is a context
with the running servers and the Peers that reach them.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from ..config.instance_keys import RAY, is_url
from ..config.instances import AGENTS, MODELS, RESOURCES
from ..config.keys import CheckoutConfig
from ..config.load import Config, Instance
from ..errors import ConfigError
from ..serving import registry
from ..serving.model import Model
from ..serving.nemo_gym.checkout import GymServer, find_interpreter
from ..serving.nemo_gym.environments import interpreter_for
from ..serving.nemo_gym.idle import IdleGymServer
from ..serving.service import Service
from ..serving.sockets import url_of
from ..serving.transport.access import accepted_by, token_for
from ..serving.transport.cassette import Cassette, Tapes
from ..serving.transport.http import MAX_REPLY_MB, HttpClient
from ..serving.transport.loop import gather_all
from ..serving.transport.peers import Local, Peers, Transport, over_http
from ..types import JsonObject
from .fleet import Fleet, Upkeep, demands_of
from .ports import Sockets, bind_all
from .run import RunIdentity
from .supervise import State


@dataclass(frozen=True, slots=True)
class HttpLimits:
    limit: int = 0
    limit_per_host: int = 0
    request_timeout_s: float = 600
    rollout_timeout_s: float = 3600
    max_reply_mb: float = MAX_REPLY_MB
    verify_timeout_s: float = 0

    def timeout_s(self, server_type: str) -> float:
        """Time limit of a request; one to an agent may take as long as a rollout, one to a
        resources server as long as a verdict."""
        if server_type == AGENTS:
            return self.rollout_timeout_s
        longest = self.verify_timeout_s if server_type == RESOURCES else 0
        return max(self.request_timeout_s, longest)

    def plan(self, instances: list[Instance]) -> JsonObject:
        """These limits in the plan of a server process."""
        return {
            "http": self.of_client(),
            "timeouts_s": {each.name: self.timeout_s(each.type) for each in instances},
            "types": {each.name: each.type for each in instances},
            "by_rollout": [each.name for each in instances if each.type == MODELS],
        }

    def of_client(self) -> dict[str, Any]:
        """Arguments of an HttpClient."""
        limits = {"limit": self.limit, "limit_per_host": self.limit_per_host}
        return {**limits, "max_reply_mb": self.max_reply_mb}

    def local_timeout_s(self, server_type: str) -> float | None:
        """Time limit of a call in this process: only models need one; the limits of the rollout
        cover all other calls."""
        return self.request_timeout_s if server_type == MODELS else None


class Kept(Protocol):
    """A process that is kept alive, here or elsewhere."""

    state: State
    restarts: int
    place: str

    @property
    def pid(self) -> int | None: ...

    @property
    def uptime_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class OnNodes:
    """The processes of one instance on other machines: where they answer, and what keeps them."""

    urls: list[str]
    kept: list[Kept]
    ends: list["asyncio.Task[str]"]
    """Each ends, with the reason, when its process is given up."""


class Nodes(Protocol):
    """Other machines that can run servers: context in which it does."""

    host: str
    """The address under which they reach this machine."""

    async def start(
        self,
        instance: Instance,
        plan: JsonObject,
        upkeep: Upkeep,
        moved: Callable[[str, list[str]], None],
        stack: AsyncExitStack,
    ) -> OnNodes:
        """Start an instance and return once it is ready; closing `stack` stops it. `plan` says how
        it reaches other servers. `moved` is called with its name and URLs when these change."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Server:
    """One placed instance. `urls` is empty if no process but this one can reach it."""

    name: str
    type: str
    implementation: str
    urls: list[str]
    asks_token: bool = False
    processes: Sequence[Kept] = field(default_factory=list)

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
    nodes: Nodes | None = None,
) -> AsyncIterator[Placed]:
    """Context in which every instance is started and ready; all are stopped at the end.

    `default` is the placement of instances that name none: `local` or `process`. With `start` false
    the instances are created in this process but not started, so that they can be described; the
    same holds for models whose calls are replayed, and for instances that run `elsewhere`. The
    token of `run` protects servers that other machines can reach.
    """
    instances = equip(config, upkeep, makes=start)
    tapes = replace(tapes, models=[each.name for each in instances if each.type == MODELS])
    idle = [*tapes.unused_models, *elsewhere] if start else list(config.instances)
    where = Division.of(instances, default, idle)
    if where.on_nodes and nodes is None:
        raise ConfigError("placement: ray is only for ng_run and ng_collect_rollouts")
    async with AsyncExitStack() as stack:
        stack.push_async_callback((client := HttpClient(**limits.of_client())).close)
        run, fleet = run or RunIdentity(), Fleet(stack, upkeep, instances, config.values)
        if nodes is not None:
            host = (await stack.enter_async_context(nodes)).host
        sockets = bind_all(instances, where.listening(elsewhere), host)
        for sock in itertools.chain.from_iterable(sockets.values()):
            stack.callback(sock.close)
        plan = {"tapes": asdict(tapes), **_plan(instances, where, sockets, run, limits)}
        urls = plan["urls"]
        transports: dict[str, Transport] = {}
        peers = Peers(transports, Cassette.of(tapes) if start else None)

        def move(name: str, to: list[str]) -> None:
            urls[name][:] = to
            peers.move(name, to)
            fleet.tell_moved(name, to)

        remote = await _start_on_nodes(where.on_nodes, nodes, plan, upkeep, move, stack)
        transports |= over_http(plan, client)
        services = [_instantiate(each, peers) for each in where.local]
        transports |= {
            each.name: Local(each, timeout_s=limits.local_timeout_s(each.kind)) for each in services
        }
        await fleet.start(where.spawned, sockets, plan, client, {*config.secrets, run.token})
        await _start(services, where.idle, sockets, run, stack)
        await gather_all(fleet.readiness())
        fleet.keep()
        ends = [*fleet.ends, *(end for each in remote.values() for end in each.ends)]
        servers = [_server_of(each, plan, fleet, remote) for each in instances]
        yield Placed(peers, servers, ends, fleet.log_dir, plan)


def equip(config: Config, upkeep: Upkeep, *, makes: bool) -> list[Instance]:
    """The instances; those with code of NeMo Gym have an interpreter. Unless `makes`, no
    environment is made, and those that would need one have none."""
    command = config.command
    known = command if isinstance(command, CheckoutConfig) else CheckoutConfig.model_validate({})
    interpreter = known.nemo_gym_python or find_interpreter(known.nemo_gym)
    version = known.python_version or config.values.get("python_version")

    def find(each: Instance, code: GymServer) -> str | None:
        given, install = each.python or interpreter, known.install and makes
        try:
            return interpreter_for(
                each.name, code, given, install=install, python=version, say=upkeep.tell
            )
        except ConfigError:
            if makes:
                raise
            return None

    return [
        replace(each, python=find(each, each.code)) if each.code else each
        for each in config.instances.values()
    ]


def _plan(
    instances: list[Instance],
    where: "Division",
    sockets: Sockets,
    run: RunIdentity,
    limits: HttpLimits,
) -> JsonObject:
    """How other processes reach the instances."""
    urls = {name: [url_of(sock) for sock in own] for name, own in sockets.items()}
    tokens = {each.name: each.token for each in instances if each.token}
    own = [*sockets, *(each.name for each in where.on_nodes)]
    tokens |= {name: token_for(name, run.token) for name in own}
    about = {"run_id": run.id, "token": run.token, **limits.plan(instances)}
    return {"urls": urls | where.urls, "tokens": tokens, **about}


@dataclass(frozen=True, slots=True)
class Division:
    """Which instances run where. Those that are `idle` are local too, and are not started."""

    local: list[Instance]
    spawned: list[Instance]
    on_nodes: list[Instance]
    urls: dict[str, list[str]]
    """Of those that run already."""
    idle: frozenset[str]

    @classmethod
    def of(cls, instances: list[Instance], default: str, idle: Collection[str]) -> Self:
        where = {each.name: placement_of(each, default) for each in instances}
        where |= dict.fromkeys(idle, "local")

        def at(place: str) -> list[Instance]:
            return [each for each in instances if where[each.name] == place]

        urls = {name: [place] for name, place in where.items() if is_url(place)}
        return cls(at("local"), at("process"), at(RAY), urls, frozenset(idle))

    def listening(self, elsewhere: Collection[str]) -> list[Instance]:
        """Those that other processes reach on sockets of this one."""
        others = self.local if self.spawned or self.on_nodes else ()
        return [*self.spawned, *(each for each in others if each.name not in elsewhere)]


def _server_of(
    instance: Instance, plan: JsonObject, fleet: Fleet, remote: Mapping[str, OnNodes]
) -> Server:
    name, type_, implementation = instance.name, instance.type, instance.implementation
    kept = remote[name].kept if name in remote else fleet.of(instance)
    urls, asks_token = plan["urls"].get(name, []), name in plan["tokens"]
    return Server(name, type_, implementation, urls, asks_token, kept)


async def _start_on_nodes(
    instances: list[Instance],
    nodes: Nodes | None,
    plan: JsonObject,
    upkeep: Upkeep,
    moved: Callable[[str, list[str]], None],
    stack: AsyncExitStack,
) -> dict[str, OnNodes]:
    """Start the instances on other machines, models first, because others call them."""
    found: dict[str, OnNodes] = {}
    for type_ in registry.TYPES if nodes is not None else ():
        own = [each for each in instances if each.type == type_]
        assert nodes is not None
        started = await gather_all(nodes.start(each, plan, upkeep, moved, stack) for each in own)
        for each, on_nodes in zip(own, started, strict=True):
            found[each.name] = on_nodes
            plan["urls"][each.name] = on_nodes.urls
    return found


def placement_of(instance: Instance, default: str) -> str:
    """`local`, `process`, `ray` or the instance's URL."""
    if instance.made:
        return "local"
    if instance.placement == RAY:
        return RAY
    if instance.num_workers > 1 or instance.process or instance.python or instance.code:
        return "process"
    if is_url(instance.placement or ""):
        return str(instance.placement)
    if instance.env or demands_of(instance).own_process:
        return "process"
    return instance.placement or default


def _instantiate(instance: Instance, peers: Peers) -> Service:
    if instance.code:
        return IdleGymServer(instance.name, instance.code, instance.python)
    if instance.made:
        return instance.made.make(instance.settings, instance.secrets, peers, instance.name)
    cls = instance.load()
    return cls(cls.Config.of(instance.settings, instance.secrets), peers, instance.name)


async def _start(
    services: list[Service],
    idle: Collection[str],
    sockets: Sockets,
    run: RunIdentity,
    stack: AsyncExitStack,
) -> None:
    """Start the services of this process concurrently, except the idle ones, of which models
    identify their weights; listen on the sockets of those that other processes must reach."""
    started = [each for each in services if each.name not in idle]
    for service in started:
        stack.push_async_callback(service.stop)
    await gather_all(service.start() for service in started)
    for service in services:
        if service.name in idle and isinstance(service, Model):
            with suppress(ConfigError, OSError):  # the weights may be on another machine
                await service.identify()
        if service.name in sockets:
            [sock] = sockets[service.name]
            accepted = accepted_by(service.name, run.token)
            await stack.enter_async_context(service.serving(sock, run.id, accepted))
