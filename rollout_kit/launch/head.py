"""The head server of a running `ng_run`: it lists the servers, and accepts the request to stop."""

import asyncio
import hmac
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import orjson
import yaml
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ..config.keys.commands import ControlConfig, HeadServerConfig
from ..errors import ConfigError, PeerError
from ..nemo_gym import handover
from ..transport.access import bearer, is_loopback
from ..transport.app import served
from ..transport.http import HttpClient, Reply
from ..types import JsonObject
from .exposition import expose_servers
from .placement import Server
from .run import RunIdentity, keep_token, read_token
from .sockets import bound_socket, url_of

IDENTITY = "rollout_kit head server"
"""Name by which a command recognizes a head server."""

CONFIG, STOP, INSTANCES = "/global_config_dict_yaml", "/stop", "/server_instances"

NONCE, ADDRESS = "x-rollout-nonce", "x-rollout-address"

NEEDS_TOKEN = (
    "needs its token: run this command as the user who started it, or give both the same auth_token"
    " in env.yaml"
)

ASK_S = 10.0
"""Time limit of a request to a head server."""


class HeadServer:
    """Answers from before the first server starts until after the last one has ended.

    `values` is the merged configuration with secrets masked. `stop` is called for a request with
    the run's token.
    """

    def __init__(
        self,
        run: RunIdentity,
        where: HeadServerConfig,
        values: JsonObject,
        stop: Callable[[], None],
    ) -> None:
        self.url = ""
        self._run = run
        self._where = where
        self._values = values
        self._stop = stop
        self._servers: list[Server] | None = None
        self._started = time.time()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        where = self._where
        try:
            sock = bound_socket(where.host, where.port)
        except OSError as error:
            raise ConfigError(
                f"the head server cannot listen on {where.host}:{where.port}: {error.strerror};"
                " stop the other ng_run, or choose another with +head_server.port=…"
                " (and give the collector the same)"
            ) from None
        self.url = url_of(sock)
        try:
            self._stack.enter_context(keep_token(self._run, self.url))
        except BaseException:
            sock.close()
            raise
        app = self._app()
        await self._stack.enter_async_context(served(app, sock, self._run.token, control=(STOP,)))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def announce(self, servers: list[Server]) -> None:
        """List these servers from now on; they are ready."""
        self._servers = servers

    def _app(self) -> FastAPI:
        app = FastAPI(title=IDENTITY, docs_url=None, redoc_url=None)

        def serve(path: str, answer: Callable[[Request], Any], method: str = "GET") -> None:
            async def endpoint(request: Request) -> Response:
                return Response(orjson.dumps(answer(request)), media_type="application/json")

            app.add_route(path, endpoint, methods=[method])

        def stopping(request: Request) -> JsonObject:
            self._stop()
            return {"status": "stopping"}

        async def metrics(request: Request) -> Response:
            return expose_servers(self._entry, request.headers.get("accept", ""))

        app.add_route("/metrics", metrics, methods=["GET"])
        serve("/", self._hello)
        serve("/health", self._hello)
        serve(CONFIG, lambda request: self._config_yaml())
        serve(INSTANCES, lambda request: self._entry())
        serve(STOP, stopping, "POST")
        return app

    def _hello(self, request: Request) -> JsonObject:
        """State and identity of the run. For a nonce, prove that the token is known here, so that
        the caller can send it safely.

        The proof holds for the address that the caller has connected to. On this machine it must be
        ours, else another program there passes on what it is asked.
        """
        status = "starting" if self._servers is None else "ok"
        hello = {"status": status, "service": IDENTITY, "run_id": self._run.id}
        nonce, address = request.headers.get(NONCE), request.headers.get(ADDRESS, "")
        if nonce and (not _is_here(address) or address == _spell(request.scope["server"])):
            hello["proof"] = _proof(self._run.token, nonce, address)
        return hello

    def _config_yaml(self) -> str:
        """The configuration, with the addresses of servers that are ready."""
        values = self._values
        if self._servers:
            urls = {each.name: each.urls for each in self._servers}
            kinds = {each.name: (each.type, each.implementation) for each in self._servers}
            values = handover.with_addresses(values, kinds, {**urls, "head_server": [self.url]})
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    def _entry(self) -> list[JsonObject]:
        return [_entry(server, self._started) for server in self._servers or ()]


def _proof(token: str, nonce: str, address: str) -> str:
    return hmac.new(token.encode(), f"{nonce} {address}".encode(), "sha256").hexdigest()


def _spell(address: tuple[str, int] | None) -> str:
    return f"{address[0]} {address[1]}" if address else ""


def _is_here(address: str) -> bool:
    """Whether an address spelled by `_spell` is on the caller's own machine."""
    return is_loopback(address.partition(" ")[0])


def _entry(server: Server, started: float) -> JsonObject:
    pids = server.pids
    return {
        "name": server.name,
        "process_name": server.name,
        "server_type": server.type,
        "implementation": server.implementation,
        "url": server.urls[0] if server.urls else None,
        "urls": server.urls,
        "pid": pids[0] if pids else None,
        "pids": pids,
        "status": "success" if server.state == "ready" else server.state,
        "state": server.state,
        "restarts": server.restarts,
        "asks_token": server.asks_token,
        "workers": _workers(server, started),
        "start_time": started,
        "uptime_seconds": time.time() - started,
    }


def _workers(server: Server, started: float) -> list[JsonObject]:
    """One entry per process; one entry for a server in ng_run's own process or behind a URL."""
    if not server.processes:
        whole: JsonObject = {"label": server.name, "state": "ready", "restarts": 0, "pid": None}
        url = server.urls[0] if server.urls else None
        return [{**whole, "url": url, "uptime_s": time.time() - started}]
    several = len(server.processes) > 1
    return [
        {
            "label": f"{server.name}-{index}" if several else server.name,
            "state": process.state,
            "restarts": process.restarts,
            "pid": process.pid,
            "url": url,
            "uptime_s": process.uptime_s,
            "place": process.place,
        }
        for index, (process, url) in enumerate(zip(server.processes, server.urls, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class HeadClient:
    """A client of a running `ng_run`'s head server."""

    url: str
    run_id: str
    status: str
    token: str
    client: HttpClient

    @classmethod
    async def at(
        cls, where: HeadServerConfig, client: HttpClient, token: str | None
    ) -> "HeadClient":
        """Find the head server; ConfigError if there is none. Without `token`, read it from the
        user's token file. It is sent only to a server that has proved to know it."""
        problem: ConfigError | None = None
        stranger: HeadClient | None = None
        for address in await _resolve(where):
            try:
                found = await cls._greet(address, where, client, token)
            except ConfigError as error:
                problem = problem or error
                continue
            if found.token:
                return found
            stranger = stranger or found
        if stranger is None:
            raise problem or ConfigError(f"no ng_run answers at {where.host}:{where.port}")
        return stranger

    @classmethod
    async def _greet(
        cls,
        address: tuple[str, int],
        where: HeadServerConfig,
        client: HttpClient,
        token: str | None,
    ) -> "HeadClient":
        """The head server at one address of its host; without the token if it proves nothing."""
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        url, shown = f"http://{host}:{address[1]}", f"http://{where.host}:{where.port}"
        advice = (
            "start one with  ng_run '+config_paths=[…]', name its place with +head_server.port=…,"
            " or collect without one: ng_collect_rollouts '+config_paths=[…]'"
        )
        nonce = secrets.token_hex(16)
        asked = {NONCE: nonce, ADDRESS: _spell(address)}
        try:
            reply = await client.get(f"{url}/health", headers=asked, timeout_s=ASK_S)
        except PeerError as error:
            raise ConfigError(f"no ng_run answers at {shown} ({error.message}): {advice}") from None
        hello = _read(reply)
        if not isinstance(hello, dict) or hello.get("service") != IDENTITY:
            raise ConfigError(f"the server at {shown} is another program, not an ng_run: {advice}")
        run_id, proof = str(hello.get("run_id")), str(hello.get("proof"))
        token = token or read_token(run_id, url)
        if not hmac.compare_digest(proof, _proof(token, nonce, _spell(address))):
            token = ""
        return cls(url, run_id, str(hello.get("status")), token, client)

    async def instances(self) -> list[JsonObject]:
        """One entry per server, as `/server_instances` lists them; ConfigError while it starts."""
        if self.status == "starting":
            raise ConfigError(
                f"the ng_run at {self.url} is still starting its servers: wait until it says that"
                " all are ready"
            )
        listed = await self._ask(INSTANCES)
        if not _is_a_list_of(listed, LISTED):
            raise ConfigError(f"the ng_run at {self.url} lists its servers in an unknown format")
        return listed

    async def values(self) -> JsonObject:
        """The configuration of the run, with secrets masked; only for those who have its token."""
        if not self.token:
            raise ConfigError(f"the ng_run at {self.url} {NEEDS_TOKEN}")
        text = await self._ask(CONFIG)
        found = yaml.safe_load(text) if isinstance(text, str) else None
        return found if isinstance(found, dict) else {}

    async def stop(self) -> None:
        """Ask the run to stop; return when it has accepted."""
        reply = await self.client.post(
            f"{self.url}{STOP}", b"{}", headers=bearer(self.token), timeout_s=ASK_S
        )
        self._check(reply)

    async def answers(self) -> bool:
        """Whether the same run still answers."""
        try:
            hello = _read(await self.client.get(f"{self.url}/health", timeout_s=ASK_S))
        except PeerError:
            return False
        return isinstance(hello, dict) and hello.get("run_id") == self.run_id

    async def _ask(self, path: str) -> Any:
        reply = await self.client.get(
            f"{self.url}{path}", headers=bearer(self.token), timeout_s=ASK_S
        )
        return _read(self._check(reply))

    def _check(self, reply: Reply) -> Reply:
        if reply.status == 401:
            raise ConfigError(f"the ng_run at {self.url} {NEEDS_TOKEN}")
        if reply.status != 200:
            raise ConfigError(f"the ng_run at {self.url} answered {reply.status}: {reply.text()}")
        return reply


async def _resolve(where: HeadServerConfig) -> list[tuple[str, int]]:
    """The addresses of a head server's host."""
    loop = asyncio.get_running_loop()
    host = where.host.strip("[]")
    try:
        found = await loop.getaddrinfo(host, where.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"head_server.host={where.host}: no such host ({error.strerror})"
        ) from None
    return list(dict.fromkeys((str(each[4][0]), int(each[4][1])) for each in found))


@asynccontextmanager
async def found_head(command: ControlConfig) -> AsyncIterator[HeadClient]:
    """Context with a client of the ng_run that the command names."""
    client = HttpClient()
    try:
        yield await HeadClient.at(command.head_server, client, command.auth_token)
    finally:
        await client.close()


LISTED = frozenset(
    ["name", "server_type", "implementation", "urls", "state", "asks_token", "workers"]
)


def _is_a_list_of(found: Any, keys: frozenset[str]) -> bool:
    return isinstance(found, list) and all(
        isinstance(each, dict) and keys <= each.keys() for each in found
    )


def _read(reply: Reply) -> Any:
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(reply.raw)
