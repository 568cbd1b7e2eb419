"""The head server of a running `ng_run`: it lists the servers, and accepts the request to stop."""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import orjson
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..config.keys import HeadServerConfig
from ..errors import ConfigError
from ..serving.nemo_gym import handover
from ..serving.sockets import bound_socket, url_of
from ..serving.transport.access import is_loopback
from ..serving.transport.app import served
from ..types import JsonObject
from .exposition import expose_servers
from .head_client import ADDRESS, CONFIG, IDENTITY, INSTANCES, NONCE, STOP, proof_of, spell_address
from .placement import Server
from .run import RunIdentity, keep_token


class HeadServer:
    """Answers from before the first server starts until after the last one has ended. So a port in
    use is reported before minutes of loading, and its end means that all servers have ended.

    `values` is the merged configuration with secrets masked. `stop` is called for a request with
    the run's token. `routes` are served too; those in `control` need the token.
    """

    def __init__(
        self,
        run: RunIdentity,
        where: HeadServerConfig,
        values: JsonObject,
        stop: Callable[[], None],
        routes: Sequence[Route] = (),
        control: Sequence[str] = (),
    ) -> None:
        self.url = ""
        self._run = run
        self._where = where
        self._values = values
        self._stop = stop
        self._routes, self._control = routes, (STOP, *control)
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
        await self._stack.enter_async_context(
            served(app, sock, self._run.token, control=self._control)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def announce(self, servers: list[Server]) -> None:
        """List these servers from now on; they are ready."""
        self._servers = servers

    def _app(self) -> Starlette:
        app = Starlette(routes=self._routes)

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
        if nonce and (not _is_here(address) or address == spell_address(request.scope["server"])):
            hello["proof"] = proof_of(self._run.token, nonce, address)
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


def _is_here(address: str) -> bool:
    """Whether an address spelled by `spell_address` is on the caller's own machine."""
    return is_loopback(address.partition(" ")[0])
