"""The head server: where a running `ng_run` tells collectors which servers there are, and is told
to stop."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import yaml
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ..access import bearer
from ..app import served
from ..config.commands import HeadServerConfig
from ..errors import ConfigError, PeerError
from ..http import HttpClient, Reply
from ..types import JsonObject
from . import token_file
from .launch import Placed, Server
from .sockets import bound_socket, url_of

IDENTITY = "rollout_kit head server"
"""How a collector tells a head server from a stranger on the same port."""

CONFIG, STOP, INSTANCES = "/global_config_dict_yaml", "/stop", "/server_instances"

ASK_S = 10.0
"""A head server does nothing that takes longer."""


@asynccontextmanager
async def head_server(
    where: HeadServerConfig, running: Placed, values: JsonObject, stop: Callable[[], None]
) -> AsyncIterator[str]:
    """Answers at the URL that it yields; `values`: the merged configuration, its secrets masked.
    `stop` is called for whoever shows the run's token."""
    try:
        sock = bound_socket(where.host, where.port)
    except OSError as error:
        raise ConfigError(
            f"the head server cannot listen on {where.host}:{where.port}: {error.strerror}; stop"
            " the other ng_run, or choose another with +head_server.port=…"
            " (and give the collector the same)"
        ) from None
    with token_file.kept(running.run_id, running.token):
        app = _app(running, values, stop)
        async with served(app, sock, running.token, control=(CONFIG, STOP)):
            yield url_of(sock)


def _app(running: Placed, values: JsonObject, stop: Callable[[], None]) -> FastAPI:
    app = FastAPI(title=IDENTITY, docs_url=None, redoc_url=None)
    started = time.time()
    config_yaml = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    hello = {"status": "ok", "service": IDENTITY, "run_id": running.run_id}

    def serve(path: str, answer: Callable[[], Any], method: str = "GET") -> None:
        async def endpoint(request: Request) -> Response:
            return Response(orjson.dumps(answer()), media_type="application/json")

        app.add_route(path, endpoint, methods=[method])

    def stopping() -> JsonObject:
        stop()
        return {"status": "stopping"}

    serve("/", lambda: hello)
    serve("/health", lambda: hello)
    serve(CONFIG, lambda: config_yaml)
    serve(INSTANCES, lambda: [_listed(server, started) for server in running.servers])
    serve(STOP, stopping, "POST")
    return app


def _listed(server: Server, started: float) -> JsonObject:
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
    """One entry per process; a server in ng_run's own, or by URL, is one too."""
    if not server.keepers:
        whole: JsonObject = {"label": server.name, "state": "ready", "restarts": 0, "pid": None}
        url = server.urls[0] if server.urls else None
        return [{**whole, "url": url, "uptime_s": time.time() - started}]
    several = len(server.keepers) > 1
    return [
        {
            "label": f"{server.name}-{index}" if several else server.name,
            "state": keeper.state,
            "restarts": keeper.restarts,
            "pid": keeper.pid,
            "url": url,
            "uptime_s": keeper.uptime_s,
        }
        for index, (keeper, url) in enumerate(zip(server.keepers, server.urls, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class Head:
    """A running `ng_run`, found at its head server."""

    url: str
    run_id: str
    token: str
    client: HttpClient

    @classmethod
    async def at(cls, where: HeadServerConfig, client: HttpClient, token: str | None) -> "Head":
        """ConfigError when none is there. Without `token` it is read from the file that `ng_run`
        keeps for its own user."""
        url = f"http://{where.host}:{where.port}"
        advice = (
            "start one with  ng_run '+config_paths=[…]', name its place with +head_server.port=…,"
            " or let this command start the servers itself with '+config_paths=[…]'"
        )
        try:
            reply = await client.get(f"{url}/health", timeout_s=ASK_S)
        except PeerError as error:
            raise ConfigError(f"no ng_run answers at {url} ({error.message}): {advice}") from None
        hello = _read(reply)
        if not isinstance(hello, dict) or hello.get("service") != IDENTITY:
            raise ConfigError(f"what answers at {url} is another program, not an ng_run: {advice}")
        run_id = str(hello.get("run_id"))
        return cls(url, run_id, token or token_file.read(run_id), client)

    async def instances(self) -> list[JsonObject]:
        """One entry per server, as `/server_instances` lists them."""
        return await self._ask(INSTANCES)

    async def values(self) -> JsonObject:
        """The configuration that it runs, its secrets masked."""
        return yaml.safe_load(await self._ask(CONFIG)) or {}

    async def stop(self) -> None:
        """Returns once it has agreed to stop."""
        reply = await self.client.post(
            f"{self.url}{STOP}", b"{}", headers=bearer(self.token), timeout_s=ASK_S
        )
        self._checked(reply)

    async def answers(self) -> bool:
        """Whether this very run is still there."""
        try:
            hello = _read(await self.client.get(f"{self.url}/health", timeout_s=ASK_S))
        except PeerError:
            return False
        return isinstance(hello, dict) and hello.get("run_id") == self.run_id

    async def _ask(self, path: str) -> Any:
        reply = await self.client.get(
            f"{self.url}{path}", headers=bearer(self.token), timeout_s=ASK_S
        )
        return _read(self._checked(reply))

    def _checked(self, reply: Reply) -> Reply:
        if reply.status == 401:
            raise ConfigError(
                f"the ng_run at {self.url} asks for its token: run this command as the user who"
                " started it, or give both the same auth_token in env.yaml"
            )
        if reply.status != 200:
            raise ConfigError(f"the ng_run at {self.url} answered {reply.status}: {reply.text()}")
        return reply


def _read(reply: Reply) -> Any:
    try:
        return orjson.loads(reply.raw)
    except orjson.JSONDecodeError:
        return None
