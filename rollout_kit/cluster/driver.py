"""The driver's side of a collection on several workers: who runs what, and the exchange.

Models, and whatever a server in a process of its own calls, run once and are reached by URL. All
other servers run in every worker.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from time import monotonic, perf_counter
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from ..collector.plan import AgentPlan
from ..collector.rollout import Runner
from ..collector.slot import Slot
from ..collector.steps import RolloutLimits
from ..config.instances import MODELS
from ..config.keys.commands import CollectConfig
from ..config.load import Config, Instance
from ..errors import ConfigError, PeerLost
from ..launch.fleet import demands_of, to_start
from ..launch.placement import placement_of
from ..launch.reach import Servers, reach
from ..launch.sockets import bound_socket, url_of
from ..pacing.bill import Bill
from ..session import TurnLog
from ..store.lines import describe_error
from ..transport.app import served
from ..transport.peers import Local, Peers
from ..transport.wire import Answers
from ..types import Attempt, JsonObject, Outcome, Say
from .leases import Dismissed, Holder, Leases, NotAskedFor
from .machine import ThisMachine
from .places import Crew, WorkerPlace
from .ray_cluster import RayCluster
from .worker import EXCHANGE, GONE, JOIN, READY, WAIT_S

LOOK_S = 1.0
"""Interval between looks for silent workers."""


@dataclass(frozen=True, slots=True)
class LeasedRunner(Runner):
    """Has workers do what a Runner does in this process."""

    leases: Leases = field(kw_only=True)

    async def outcome_of(self, attempt: Attempt, slot: Slot) -> Outcome:
        began = perf_counter()
        try:
            return await self.leases.outcome_of(attempt, slot)
        except PeerLost as error:
            tried = describe_error(error, perf_counter() - began)
            return self.failure_of(attempt, error, [tried], None)


class OnWorkers(Local):
    """A server that workers run: it is described here, and called there."""

    def __init__(self, service: Answers, leases: Leases) -> None:
        super().__init__(service)
        self._leases = leases

    def row_check(self) -> None:
        return None

    async def send(self, path: str, raw: bytes | None, turn_log: TurnLog | None = None) -> Any:
        return await self._leases.call(self.service.name, path, raw)


@dataclass(slots=True)
class Cluster:
    """The servers as the driver reaches them, and what makes its runner."""

    servers: Servers
    leases: Leases
    exchange: "Exchange"

    def make_runner(
        self, peers: Peers, agents: dict[str, AgentPlan], limits: RolloutLimits, *, bill: Bill
    ) -> Runner:
        """A runner that has the workers run the attempts; they start once it is known how."""
        self.exchange.begin(agents, limits)
        return LeasedRunner(peers, agents, limits, bill=bill, leases=self.leases)


@asynccontextmanager
async def cluster(
    config: Config[CollectConfig], command: CollectConfig, say: Say
) -> AsyncIterator[Cluster]:
    """Context with workers that run the attempts of a collection."""
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
        reach(split.config, command, say, host=place.host, elsewhere=split.names) as servers,
    ):
        transports = {name: OnWorkers(_service(servers, name), leases) for name in split.names}
        servers = replace(servers, peers=servers.peers.with_others(transports))
        plan = {**servers.plan, "instances": to_start(split.instances), "is_restarted": False}
        sock = bound_socket(place.host, 0)
        exchange = Exchange(leases, plan, say, url_of(sock), token)
        crew = Crew(
            command.num_workers or place.num_workers(),
            exchange.invite,
            leases,
            {*config.secrets, token},
            command.log_dir,
            say,
        )
        async with served(exchange.app, sock, token, control=(READY, EXCHANGE), opened=(JOIN,)):
            watch = asyncio.create_task(_watch(leases))
            try:
                async with place.start(crew) as ends:
                    yield Cluster(replace(servers, ends=[*servers.ends, *ends]), leases, exchange)
            finally:
                leases.dismiss_all()
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)


def _place_of(command: CollectConfig) -> WorkerPlace:
    if command.executor == "processes":
        return ThisMachine()
    return RayCluster(command.ray_address, command.ray_worker_cpus, command.num_workers)


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
    once = {each.name for each in known.values() if _runs_once(each)}
    while found := {name for each in once for name in _named(known[each], known)} - once:
        once |= found
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


def _named(instance: Instance, known: Collection[str]) -> Iterator[str]:
    """Other instances that the settings of one refer to."""

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, Mapping):
            if value.get("name") in known and value.keys() <= {"type", "name"}:
                yield value["name"]
            value = list(value.values())
        if isinstance(value, list):
            for each in value:
                yield from walk(each)

    return walk(instance.settings)


def _service(servers: Servers, name: str) -> Answers:
    transport = servers.peers.transport(name)
    assert isinstance(transport, Local)
    return transport.service


class Exchange:
    """Answers the calls of workers. `plan` is what each needs to start its servers; `token` is what
    it shows from then on."""

    def __init__(
        self, leases: Leases, plan: JsonObject, say: Say, url: str = "", token: str = ""
    ) -> None:
        self._leases, self._say, self._url = leases, say, url
        self._plan = {**plan, "token_of_driver": token}
        self._tickets: dict[str, str] = {}
        self._welcome = b""
        self._has_begun = asyncio.Event()
        self._calls: dict[tuple[str, str], Call] = {}

    def invite(self, title: str) -> JsonObject:
        """What a new worker needs to reach the driver. Its ticket is void once it is ready."""
        worker, ticket = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._tickets[worker] = ticket
        return {"url": self._url, "ticket": ticket, "worker": worker, "title": title}

    def begin(self, agents: Mapping[str, AgentPlan], limits: RolloutLimits) -> None:
        """From now on workers learn how each agent makes its rollouts."""
        own = {each.name: getattr(limits, each.name) for each in fields(limits)}
        plans = {name: asdict(plan) for name, plan in agents.items()}
        self._welcome = orjson.dumps({**self._plan, "agents": plans, "limits": own})
        self._has_begun.set()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI app: `/join`, `/ready` and `/exchange`, each with a JSON object."""
        raw, routes = await _read_body(receive), {JOIN: self._join, READY: self._greet}
        answer = {**routes, EXCHANGE: self.exchange}.get(scope["path"])
        try:
            if answer is None:
                status, reply = 404, b'{"detail":"Not Found"}'
            else:
                status, reply = 200, await answer(orjson.loads(raw))
        except Dismissed as error:
            status, reply = GONE, orjson.dumps({"detail": str(error)})
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, NotAskedFor) as error:
            reason = f"{type(error).__name__}: {error}"
            status, reply = 422, orjson.dumps({"detail": reason})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    async def _join(self, asked: JsonObject) -> bytes:
        ticket = self._tickets.get(asked["worker"], "")
        if not (ticket and secrets.compare_digest(ticket, asked["ticket"])):
            raise Dismissed("the ticket is not valid, or no longer")
        try:
            async with asyncio.timeout(WAIT_S):
                await self._has_begun.wait()
        except TimeoutError:
            return b"{}"  # the worker asks again
        return self._welcome

    async def _greet(self, asked: JsonObject) -> bytes:
        if self._tickets.pop(asked["worker"], None) is None:
            return b"{}"  # it asks again
        self._leases.join(asked["worker"], asked["title"])
        self._say(f"{asked['title']} is ready (pid {asked['pid']})")
        return b"{}"

    async def exchange(self, asked: JsonObject) -> bytes:
        """Take events and grant leases. A call that comes again gets the reply of its first."""
        known = (asked["worker"], asked["channel"])
        last = self._calls.get(known)
        if last is not None and last.number == asked["call"]:
            return await last.reply
        reply = asyncio.get_running_loop().create_future()
        self._calls[known] = Call(asked["call"], reply)
        try:
            found = await self._answer(asked)
        except BaseException as error:
            if not reply.done():
                reply.cancel() if isinstance(error, asyncio.CancelledError) else (
                    reply.set_exception(error)
                )
            raise
        reply.set_result(found)
        return found

    async def _answer(self, asked: JsonObject) -> bytes:
        member, is_anew = self._leases.hear(asked["worker"], asked["title"])
        self._leases.take(member, asked["events"])
        if asked["events"]:
            for _ in range(TURNS):  # the run takes the outcomes and starts others
                await asyncio.sleep(0)
        found = self._leases.grant(member, asked["want"])
        if asked["wait_s"] and not (found or is_anew or member.recalled or member.regained):
            await _wait(member, asked["wait_s"])
            found = self._leases.grant(member, asked["want"])
        recalled, member.recalled = member.recalled, []
        regained, member.regained = member.regained, []
        return orjson.dumps(
            {
                "anew": is_anew,
                "leases": [lease.message() for lease in found],
                "recalled": recalled,
                "regained": regained,
            }
        )


TURNS = 3
"""Turns of the event loop from an outcome to the next attempt: the task that waits for it ends, the
run takes it, and the next task begins."""


@dataclass(slots=True)
class Call:
    """The last call of a worker on one channel."""

    number: int
    reply: "asyncio.Future[bytes]"


async def _wait(member: Holder, seconds: float) -> None:
    """Until there is something for the worker, or the time is over."""
    waiting = member.waiting = asyncio.get_running_loop().create_future()
    timer = asyncio.get_running_loop().call_later(seconds, member.wake)
    try:
        await waiting
    finally:
        timer.cancel()
        if member.waiting is waiting:
            member.waiting = None


async def _read_body(receive: Receive) -> bytes:
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)
