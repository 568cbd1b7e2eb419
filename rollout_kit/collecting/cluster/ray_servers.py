"""Servers on the nodes of a Ray cluster: `placement: ray`.

For each server Ray places an actor, with the GPUs and CPUs that the server asks for. The actor
starts the server as a process of its node and keeps it alive, as `ng_run` does here. It ends with
the `ng_run`, however that ends: it looks for it every two seconds. A server whose node is lost is
started on another one, at another URL.
"""

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple, Self

import orjson
from starlette.types import Receive, Scope, Send

from ...config.instances import Instance
from ...config.keys import Command
from ...config.load import Config
from ...errors import ConfigError
from ...launch.fleet import Upkeep
from ...launch.placement import HttpLimits, Kept, OnNodes, placed
from ...launch.run import RunIdentity
from ...launch.supervise import State
from ...serving.sockets import bound_socket, url_of
from ...serving.transport.access import bearer, send_json
from ...serving.transport.app import read_body, served
from ...serving.transport.http import HttpClient
from ...serving.transport.loop import cancel_all
from ...serving.transport.retry import SERVER_RESTART, delay_s
from ...types import JsonObject
from .ray_cluster import RayCluster, describe_loss

JOIN, BEAT = "/join", "/beat"

BEAT_S = 2.0
"""Interval at which an actor looks for its `ng_run`."""

MISSING_S = 10.0
"""An `ng_run` that has not answered for this long is gone."""

GONE = 410
"""Status for an actor that is to end."""


class Ticket(NamedTuple):
    """What a new actor needs to get the rest; good for one start."""

    url: str
    id: str
    secret: str


class ServerHost:
    """The actor: it runs one server on its node."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._ends: list[asyncio.Task[str]] = []

    async def start(self, driver: str, id: str, ticket: str, folder: str) -> JsonObject:
        """Start the server; returns its URL and its place, or the reason why it cannot start."""
        if not os.path.isdir(folder):  # noqa: ASYNC240 (at its start)
            return {"error": f"there is no folder {folder} on its node: share it with all nodes"}
        os.chdir(folder)
        client = HttpClient(max_reply_mb=1 << 10)
        asked = orjson.dumps({"id": id, "ticket": ticket})
        reply = await client.post(f"{driver}{JOIN}", asked, timeout_s=MISSING_S)
        if reply.status != 200:
            return {"error": f"the ng_run answered {reply.status}: {reply.text()}"}
        plan = orjson.loads(reply.raw)
        threading.Thread(
            target=_end_with, args=(driver, id, plan["token_of_beat"]), daemon=True
        ).start()
        try:
            running = await self._stack.enter_async_context(_placed_here(plan))
        except ConfigError as error:
            return {"error": str(error)}
        self._ends = running.ends
        [server] = [each for each in running.servers if each.name == plan["instance"]["name"]]
        node, gpus = socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        place = f"{node}, GPU {gpus}" if gpus else node
        return {"url": server.urls[0], "pid": server.pids[0], "place": place}

    async def wait_ended(self) -> JsonObject:
        """Wait until the server is given up; returns the reason."""
        done, _ = await asyncio.wait(self._ends, return_when=asyncio.FIRST_COMPLETED)
        return {"error": done.pop().result()}


def _placed_here(plan: JsonObject) -> Any:
    """The context of the server, as a process of this node; it reaches all others by URL."""
    own = Instance(**{**plan["instance"], "secrets": frozenset(plan["instance"]["secrets"])})
    tokens = plan["tokens"]
    known = {
        name: Instance(name, plan["types"][name], "", {}, placement=urls[0], token=tokens.get(name))
        for name, urls in plan["urls"].items()
    }
    config = Config(Command.model_validate({}), {**known, own.name: own}, {}, {}, {}, own.secrets)
    return placed(
        config,
        default="process",
        host=plan["host"],
        limits=HttpLimits(**plan["http"]),
        upkeep=Upkeep(plan["ready_timeout_s"], plan["max_restarts"]),
        run=RunIdentity(plan["run_id"], plan["token"]),
    )


def _end_with(driver: str, id: str, token: str) -> None:
    """End this process, and with it the server, once the `ng_run` is gone or has replaced it."""
    import urllib.error
    import urllib.request

    headers = {"content-type": "application/json", **bearer(token)}
    answered = time.monotonic()
    while time.monotonic() - answered < MISSING_S:
        body = orjson.dumps({"id": id})
        request = urllib.request.Request(f"{driver}{BEAT}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=BEAT_S):
                answered = time.monotonic()
        except urllib.error.HTTPError as error:
            if error.code == GONE:
                break
        except OSError:
            pass  # it may be back soon
        time.sleep(BEAT_S)
    os._exit(0)  # the reaper kills what the actor has started


class RayServer:
    """One server on some node. `invite` makes the ticket of a new actor; `dismiss` ends it."""

    def __init__(self, title: str, instance: Instance, ray: Any, upkeep: Upkeep) -> None:
        self.title, self.url, self.place = title, "", ""
        self.state: State = "starting"
        self.restarts = 0
        self.pid: int | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Its first start; ConfigError if that fails."""
        self._instance, self._ray, self._upkeep = instance, ray, upkeep
        self._ready_at = 0.0

    @property
    def uptime_s(self) -> float | None:
        return time.monotonic() - self._ready_at if self.state == "ready" else None

    async def keep(
        self,
        invite: Callable[[], Ticket],
        dismiss: Callable[[str], None],
        moved: Callable[[], None],
    ) -> str:
        """Keep it alive; returns why it was given up."""
        failed, tell = 0, self._upkeep.tell
        while True:
            ticket, actor = invite(), self._make_actor()
            found = await self._ask(actor.start.remote, *ticket, os.getcwd())
            if "error" not in found:
                failed = 0
                self.url, self.pid, self.place = found["url"], found["pid"], found["place"]
                self.state, self._ready_at = "ready", time.monotonic()
                moved()
                if self.ready.done():
                    tell(f"{self.title} is back, at {self.url} on {self.place}")
                else:
                    self.ready.set_result(None)
                found = await self._ask(actor.wait_ended.remote)
            else:
                failed += 1
            dismiss(ticket.id)
            with suppress(Exception):  # it is gone already
                self._ray.kill(actor)
            why = found["error"]
            if not self.ready.done() or failed >= self._upkeep.max_restarts:
                return self._give_up(f"{self.title}: {why}\n    given up: it cannot be started")
            self.state, self.pid = "restarting", None
            self.restarts += 1
            tell(f"{self.title} on {self.place} is lost, it {why}: starting another one")
            await asyncio.sleep(delay_s(SERVER_RESTART, failed) if failed else 0.0)

    def _give_up(self, why: str) -> str:
        self.state = "failed"
        if not self.ready.done():
            self.ready.set_exception(ConfigError(why))
        return why

    def _make_actor(self) -> Any:
        one = self._instance
        options: JsonObject = {"max_restarts": 0, "scheduling_strategy": "SPREAD"}
        options["num_cpus"] = 1 if one.num_cpus is None else one.num_cpus
        if one.num_gpus:
            options["num_gpus"] = one.num_gpus
        if one.resources:
            options["resources"] = one.resources
        return self._ray.remote(ServerHost).options(**options).remote()

    async def _ask(self, method: Callable[..., Any], *arguments: str) -> JsonObject:
        """What the actor answers; `error` if it was lost."""
        try:
            return await method(*arguments)
        except self._ray.exceptions.RayError as error:
            return {"error": describe_loss(error)}


class RayServers:
    """Starts servers on the nodes of the Ray cluster at `address`, or of a new one."""

    def __init__(self, address: str | None) -> None:
        self.host = ""
        self._cluster = RayCluster(address, 1.0, None)
        self._url, self._token = "", secrets.token_urlsafe(32)
        self._stack = AsyncExitStack()
        self._known: dict[str, tuple[Ticket, JsonObject]] = {}
        """Id of an actor that may live → its ticket and what its server needs."""

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._cluster)
        self.host = self._cluster.host
        sock = bound_socket(self.host, 0)
        self._url = url_of(sock)
        context = served(self._app, sock, self._token, control=(BEAT,), opened=(JOIN,))
        await self._stack.enter_async_context(context)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._known.clear()
        await self._stack.aclose()

    async def start(
        self,
        instance: Instance,
        plan: JsonObject,
        upkeep: Upkeep,
        moved: Callable[[str, list[str]], None],
        stack: AsyncExitStack,
    ) -> OnNodes:
        several = instance.num_workers > 1
        titles = [
            f"server '{instance.name}{f'-{number}' * several}'"
            for number in range(instance.num_workers)
        ]
        servers = [RayServer(title, instance, self._cluster.ray, upkeep) for title in titles]
        urls = [""] * len(servers)

        def invite() -> Ticket:
            ticket = Ticket(self._url, secrets.token_hex(8), secrets.token_urlsafe(32))
            self._known[ticket.id] = ticket, self._welcome(instance, plan, upkeep)
            return ticket

        def dismiss(id: str) -> None:
            self._known.pop(id, None)

        def note_move() -> None:
            if all(server.ready.done() for server in servers):
                moved(instance.name, [server.url for server in servers])

        ends = [asyncio.create_task(each.keep(invite, dismiss, note_move)) for each in servers]
        stack.push_async_callback(cancel_all, ends)
        await asyncio.gather(*(server.ready for server in servers))
        urls[:] = [server.url for server in servers]
        kept: list[Kept] = list(servers)
        return OnNodes(urls, kept, ends)

    def _welcome(self, instance: Instance, plan: JsonObject, upkeep: Upkeep) -> JsonObject:
        """What an actor needs to start the server; only its ticket gets it."""
        one = replace(instance, placement="process", num_workers=1, datasets=[])
        others = {name: urls for name, urls in plan["urls"].items() if name != instance.name}
        return {
            **{name: plan[name] for name in ("token", "run_id", "tokens", "types", "http")},
            "instance": {**asdict(one), "secrets": list(instance.secrets)},
            "urls": others,
            "token_of_beat": self._token,
            "ready_timeout_s": upkeep.ready_timeout_s,
            "max_restarts": upkeep.max_restarts,
        }

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        try:
            status, reply = self._answer(scope["path"], orjson.loads(raw), scope)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            status, reply = 422, {"detail": f"{type(error).__name__}: {error}"}
        await send_json(send, status, orjson.dumps(reply))

    def _answer(self, path: str, asked: JsonObject, scope: Scope) -> tuple[int, JsonObject]:
        id = asked["id"]
        if path == BEAT:
            return (200, {}) if id in self._known else (GONE, {"detail": "it was replaced"})
        ticket, welcome = self._known.get(id, (None, {}))
        if ticket is None or not secrets.compare_digest(ticket.secret, asked["ticket"]):
            return GONE, {"detail": "the ticket is not valid, or no longer"}
        self._known[id] = ticket._replace(secret=secrets.token_urlsafe(32)), {}  # it was used
        return 200, {**welcome, "host": scope["client"][0]}
