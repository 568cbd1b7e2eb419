"""What only a real socket can show: cookies, refused connections, foreign servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from support import HANG_S, Echo

from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.errors import (
    ModelError,
    PeerError,
    PeerTimeout,
    PeerUnreachable,
    RolloutError,
    TaskError,
)
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.app import served
from rollout_kit.serving.transport.http import HttpClient, Reply
from rollout_kit.serving.transport.peers import Http, Peers
from rollout_kit.serving.transport.retry import RECONNECT
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject, SeedSessionResponse


@asynccontextmanager
async def foreign(*, timeout_s: float = HANG_S, **handlers) -> AsyncIterator[tuple[str, Peers]]:
    """A server that is none of ours, and peers that reach it as `foreign`."""
    app = web.Application()
    for name, handler in handlers.items():
        app.router.add_post(f"/{name}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    sock = bound_socket("127.0.0.1", 0)
    site = web.SockSite(runner, sock)
    await site.start()
    client = HttpClient()
    try:
        yield url_of(sock), Peers({"foreign": Http("foreign", [url_of(sock)], client, timeout_s)})
    finally:
        await client.close()
        await runner.cleanup()


def test_cookies_of_a_foreign_server_come_back_to_it_and_stay_apart() -> None:
    async def seed(request: web.Request) -> web.Response:
        reply = web.json_response({})
        reply.set_cookie("Session___x", request.headers["x-rollout-session"])
        return reply

    async def verify(request: web.Request) -> web.Response:
        return web.json_response({"cookie": request.cookies["Session___x"]})

    async def main() -> list[str]:
        async with foreign(seed=seed, verify=verify) as (_, peers):

            async def attempt(name: str) -> str:
                with entered(Session(name)):
                    await peers.call("foreign", "/seed", {}, dict)
                    await asyncio.sleep(0.01)
                    return (await peers.call("foreign", "/verify", {}, dict))["cookie"]

            return await asyncio.gather(attempt("one"), attempt("two"))

    assert asyncio.run(main()) == ["one", "two"]


@pytest.mark.parametrize("how", ["expires=Thu, 01 Jan 1970 00:00:00 GMT; path=/", "Max-Age=0"])
def test_a_cookie_that_a_server_takes_back_is_sent_no_more(how: str) -> None:
    async def seed(request: web.Request) -> web.Response:
        return web.json_response({}, headers={"set-cookie": "a=1; path=/"})

    async def verify(request: web.Request) -> web.Response:
        sent = {"cookies": dict(request.cookies)}
        return web.json_response(sent, headers={"set-cookie": f"a=null; {how}"})

    async def main() -> list[dict[str, Any]]:
        async with foreign(seed=seed, verify=verify) as (_, peers):
            with entered(Session()):
                await peers.call("foreign", "/seed", {}, dict)
                return [await peers.call("foreign", "/verify", {}, dict) for _ in range(2)]

    assert asyncio.run(main()) == [{"cookies": {"a": "1"}}, {"cookies": {}}]


class Remembers(Echo):
    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        self.state = body
        return SeedSessionResponse()


def test_a_caller_that_knows_only_cookies_keeps_its_session() -> None:
    async def main() -> tuple[int, int]:
        service = making(Remembers)(Peers({}), "echo")
        sock = bound_socket("127.0.0.1", 0)
        client = HttpClient()
        async with served(service.build_app(), sock):
            url = url_of(sock)
            row = b'{"responses_create_params": {}, "expected": "x"}'
            seeded = await client.post(f"{url}/seed_session", row)
            cookie = seeded.headers.getall("set-cookie")[0].split(";")[0]
            opened = service.num_sessions
            await client.post(f"{url}/close_session", b"{}", headers={"cookie": cookie})
            await client.close()
            return opened, service.num_sessions

    assert asyncio.run(main()) == (1, 0)


def test_a_foreign_refusal_becomes_an_error_with_its_words() -> None:
    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=500, text="KeyError('options')")

    async def picky(request: web.Request) -> web.Response:
        return web.json_response({"detail": "no such field"}, status=422)

    async def main() -> None:
        async with foreign(broken=broken, picky=picky) as (_, peers):
            with pytest.raises(PeerError, match="answered 500: KeyError") as caught:
                await peers.call("foreign", "/broken", {}, dict)
            assert caught.value.body == "KeyError('options')" and caught.value.retryable
            with pytest.raises(TaskError, match="no such field") as refused:
                await peers.call("foreign", "/picky", {}, dict)
            assert refused.value.terminal

    asyncio.run(main())


def test_a_server_that_hangs_is_a_timeout_and_one_that_hangs_up_a_peer_error() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(HANG_S)
        return web.Response()

    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def main() -> None:
        async with foreign(hang=hang, timeout_s=0.5) as (_, peers):
            with pytest.raises(PeerTimeout, match=r"within 0\.5 s"):
                await peers.call("foreign", "/hang", {}, dict)
        async with foreign(hang_up=hang_up) as (_, peers):
            with pytest.raises(PeerError, match="broke off") as caught:
                await peers.call("foreign", "/hang_up", {}, dict)
            assert caught.value.retryable and caught.value.server == "foreign"

    asyncio.run(main())


@pytest.mark.parametrize("cause", [PeerTimeout("too late"), KeyError("a bug")])
def test_a_server_logs_the_traceback_of_a_bug_and_of_nothing_else(
    cause: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(params: JsonObject) -> JsonObject:
        try:
            raise cause
        except PeerTimeout as error:
            raise ModelError("no answer") from error

    async def main() -> None:
        servers = {"m": lambda peers, name: ScriptedModel(answer, peers, name)}
        async with mount(servers, "http") as peers:
            with pytest.raises(RolloutError):
                await peers.call("m", "/v1/responses", {"input": "x"}, dict)

    asyncio.run(main())
    assert bool(caplog.records) is isinstance(cause, KeyError)


def test_nothing_is_executed_twice_when_a_connection_is_reset() -> None:
    seen = 0

    async def once(request: web.Request) -> web.Response:
        nonlocal seen
        seen += 1
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def main() -> None:
        async with foreign(once=once) as (_, peers):
            with pytest.raises(PeerError):
                await peers.call("foreign", "/once", {}, dict)

    asyncio.run(main())
    assert seen == 1


def test_a_server_that_comes_back_is_reached_and_one_that_does_not_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        service = making(Echo)(Peers({}), "echo")
        sock = bound_socket("127.0.0.1", 0)
        url, port = url_of(sock), sock.getsockname()[1]
        sock.close()
        refused = asyncio.Event()

        class Client(HttpClient):
            async def get(self, *args: Any, **keys: Any) -> Reply:
                try:
                    return await super().get(*args, **keys)
                except PeerUnreachable:
                    refused.set()
                    raise

        client = Client()
        peers = Peers({"echo": Http("echo", [url], client)})
        patient = replace(RECONNECT, deadline_s=HANG_S)
        monkeypatch.setattr("rollout_kit.serving.transport.peers.RECONNECT", patient)
        call = asyncio.create_task(peers.call("echo", "/tools", None, list))
        await refused.wait()
        async with served(service.build_app(), bound_socket("127.0.0.1", port)):
            assert await call == []
        soon = replace(RECONNECT, deadline_s=0.2)
        monkeypatch.setattr("rollout_kit.serving.transport.peers.RECONNECT", soon)
        with pytest.raises(PeerUnreachable, match=f"cannot connect to {url}/tools"):
            await peers.call("echo", "/tools", None, list)
        with pytest.raises(PeerUnreachable, match=r"/health: .*; start that server, or correct"):
            await peers.describe("echo")
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("has_middleware", [False, True])
def test_an_app_with_routes_and_middleware_of_its_own_is_served_as_it_is(
    has_middleware: bool,
) -> None:
    class Wider(Echo):
        def build_app(self, run_id: str = "") -> Any:
            app = super().build_app(run_id)
            app.add_api_route("/more", lambda: {"more": True})
            app.router.routes.insert(0, Route("/verify", refuse, methods=["POST"]))
            if has_middleware:
                app.add_middleware(Stamp)
            return app

    async def refuse(request: Request) -> JSONResponse:
        return JSONResponse({"reward": -1.0})

    class Stamp(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            reply = await call_next(request)
            reply.headers["x-stamp"] = "yes"
            return reply

    async def main() -> list[Reply]:
        client = HttpClient()
        async with served(
            making(Wider)(Peers({}), "echo").build_app(), sock := bound_socket("127.0.0.1", 0)
        ):
            url = url_of(sock)
            row = b'{"responses_create_params": {}, "expected": "x"}'
            found = [
                await client.post(f"{url}/seed_session", row),
                await client.post(f"{url}/verify", row),
                await client.get(f"{url}/more"),
                await client.get(f"{url}/verify"),
                await client.post(f"{url}/nothing", row),
            ]
            await client.close()
            return found

    replies = asyncio.run(main())
    assert [reply.status for reply in replies] == [200, 200, 200, 405, 404]
    assert b"-1.0" in replies[1].raw and b"more" in replies[2].raw
    stamps = ["yes" if has_middleware else ""] * 5
    assert [reply.headers.get("x-stamp") for reply in replies] == stamps
