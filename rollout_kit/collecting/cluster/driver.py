"""The driver's side of a collection on several workers: who runs what.

Models, and whatever a server in a process of its own calls, run once and are reached by URL. All
other servers run in every worker.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, perf_counter, strftime
from typing import Any

from ...config.instances import MODELS
from ...config.keys import CollectConfig
from ...config.load import Config, Instance
from ...config.verification import select_needed
from ...errors import ConfigError, PeerLost
from ...launch.fleet import demands_of
from ...launch.holdings import to_start
from ...launch.placement import placement_of
from ...launch.reach import Servers, reach
from ...serving.sockets import bound_socket, url_of
from ...serving.transport.app import served
from ...serving.transport.conversation import SplitRequest
from ...serving.transport.loop import beside
from ...serving.transport.peers import Local, Peers
from ...serving.transport.wire import Answers
from ...session import TurnLog
from ...store.lines import describe_error, info_of
from ...types import Attempt, Outcome, Say, Unverified
from ..agents import AgentPlan
from ..pacing.bill import Bill
from ..pacing.probe import WorkerLoad
from ..rollout import Runner
from ..slot import Slot
from ..steps import RolloutLimits
from .exchange import OF_MEMBERS, Exchange
from .leases import Lease, Leases
from .machine import ThisMachine
from .nodes import nodes_for
from .places import Crew, WorkerPlace
from .ray_cluster import RayCluster
from .worker import JOIN

WORKER_CPUS = 1.0
"""CPUs that Ray reserves for a worker."""

LOOK_S = 1.0
"""Interval between looks for silent workers."""


@dataclass(frozen=True, slots=True)
class LeasedRunner(Runner):
    """Has workers do what a Runner does in this process."""

    leases: Leases = field(kw_only=True)

    def load(self) -> WorkerLoad:
        return self.leases.load()

    def begin(self, attempt: Attempt, slot: Slot) -> Lease:
        slot.turns = list(attempt.turns)
        return self.leases.lease(attempt, slot, partial(self._end, attempt, slot))

    def _end(
        self, attempt: Attempt, slot: Slot, found: Outcome | PeerLost | None
    ) -> Outcome | None:
        """What came of an attempt; None if it was cancelled."""
        self.bill.add(slot.ledger.spent)
        if isinstance(found, PeerLost):
            return self._give_up(slot.attempt or attempt, slot, found)
        return found

    def _give_up(self, attempt: Attempt, slot: Slot, error: PeerLost) -> Outcome:
        """What is left of an attempt that has lost too many workers."""
        tried = describe_error(error, perf_counter() - slot.began)
        if (line := attempt.stored) is not None:
            verifier = self.agents[attempt.key.agent].verifier
            return Unverified(info_of(line), {**line, "failure": tried}, error, verifier)
        return self.failure_of(attempt, error, [tried], slot.ledger.billed_usd)


class OnWorkers(Local):
    """A server that workers run: it is described here, and called there."""

    def __init__(self, service: Answers, leases: Leases) -> None:
        super().__init__(service)
        self._leases = leases

    def row_check(self) -> None:
        return None

    async def send(
        self, path: str, raw: bytes | SplitRequest | None, turn_log: TurnLog | None = None
    ) -> Any:
        body = bytes(raw) if isinstance(raw, SplitRequest) else raw
        return await self._leases.call(self.service.name, path, body)


def make_leased_runner(
    exchange: Exchange,
    leases: Leases,
    peers: Peers,
    agents: dict[str, AgentPlan],
    limits: RolloutLimits,
    *,
    bill: Bill,
) -> Runner:
    """A runner that has the workers run the attempts; they start once it is known how."""
    exchange.begin(agents, limits)
    return LeasedRunner(peers, agents, limits, bill=bill, leases=leases)


@asynccontextmanager
async def cluster(config: Config[CollectConfig], say: Say) -> AsyncIterator[Servers]:
    """Context with the servers, and workers that run the attempts of a collection."""
    command = config.command
    for name in ("record", "replay"):
        if getattr(command, name):
            raise ConfigError(
                f"{name}: model calls are recorded and replayed in one process only: leave out"
                f" executor={command.executor}, or {name}"
            )
    split = _split(config)
    leases, token = Leases(monotonic, command.worker_lease_s, say), secrets.token_urlsafe(32)
    async with (
        _place_of(command) as place,
        reach(
            split.config,
            say,
            host=place.host,
            elsewhere=split.names,
            nodes=nodes_for(split.config),
        ) as servers,
    ):
        transports = {name: OnWorkers(_service(servers, name), leases) for name in split.names}
        servers = replace(servers, peers=servers.peers.with_others(transports))
        plan = {**servers.plan, "instances": to_start(split.instances), "is_restarted": False}
        sock = bound_socket(place.host, 0)
        exchange = Exchange(leases, plan, say, url_of(sock), token)
        leases.num_expected = command.num_workers or place.num_workers()
        crew = Crew(
            leases.num_expected,
            exchange.invite,
            leases,
            {*config.secrets, token},
            command.log_dir and command.log_dir / strftime(f"%F_%H-%M-%S_{secrets.token_hex(2)}"),
            say,
        )
        async with (
            served(exchange.app, sock, token, control=OF_MEMBERS, opened=(JOIN,)),
            beside(_watch(leases)),
        ):
            try:
                async with place.start(crew) as ends:
                    yield replace(
                        servers,
                        ends=[*servers.ends, *ends],
                        make_runner=partial(make_leased_runner, exchange, leases),
                    )
            finally:
                leases.dismiss_all()


def _place_of(command: CollectConfig) -> WorkerPlace:
    if command.executor == "processes":
        return ThisMachine()
    return RayCluster(command.ray_address, WORKER_CPUS, command.num_workers)


async def _watch(leases: Leases) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        leases.lose_silent()


@dataclass(frozen=True, slots=True)
class Split:
    """The instances that workers run, and the configuration in which all others are placed."""

    config: Config[CollectConfig]
    instances: list[Instance] = field(default_factory=list)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.instances)


def _split(config: Config[CollectConfig]) -> Split:
    known = config.instances
    once = select_needed(known, [each.name for each in known.values() if _runs_once(each)])
    placed = {
        name: replace(each, placement="process")
        if name in once and placement_of(each, "local") == "local"
        else each
        for name, each in known.items()
    }
    own = [each for name, each in known.items() if name not in once]
    return Split(replace(config, instances=placed), own)


def _runs_once(instance: Instance) -> bool:
    if placement_of(instance, "local") != "local":
        return True
    return instance.type == MODELS and not demands_of(instance).per_worker


def _service(servers: Servers, name: str) -> Answers:
    transport = servers.peers.transport(name)
    assert isinstance(transport, Local)
    return transport.service
