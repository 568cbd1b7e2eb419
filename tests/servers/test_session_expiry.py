"""Sessions whose callers are gone are closed; those in use are not."""

import asyncio

import pytest
from support import row

from rollout_kit.api.testing import making, run_virtual
from rollout_kit.errors import SessionLost, ToolError
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.serving.transport.wire import encode
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


class Sandbox(ResourcesServer):
    """Holds something dear in each session."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.held: set[str] = set()
        self.num_closings = 0
        self.closing_s = 0

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = body["expected"]
        self.held.add(self.state)
        return {}

    @tool
    async def work(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.state

    async def close_session(self, body: JsonObject) -> JsonObject:
        self.num_closings += 1
        await asyncio.sleep(self.closing_s)
        self.held.remove(self.state)
        if self.state == "stubborn":
            raise RuntimeError("will not go")
        return {}

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(1.0)


def sandbox() -> Sandbox:
    server = making(Sandbox, session_timeout_s=100)(Peers({}), "sandbox")
    assert isinstance(server, Sandbox)
    return server


async def call(server: Sandbox, session: str, path: str, **body) -> str:
    with entered(Session(session)):
        return encode(await server.answer(path, encode(body))).decode()


def test_a_session_that_is_not_heard_of_is_closed_and_then_lost() -> None:
    async def main() -> None:
        server = sandbox()
        for name in ("silent", "stubborn", "busy", "talking"):
            await call(server, name, "/seed_session", **row(name))
        long = asyncio.create_task(call(server, "busy", "/work", seconds=500))
        for _ in range(5):
            await asyncio.sleep(60)
            await call(server, "talking", "/work", seconds=0)
        assert server.held == {"busy", "talking"} and server.num_sessions == 2
        with pytest.raises(SessionLost, match="the session expired"):
            await call(server, "silent", "/work", seconds=0)
        assert await long == "busy"
        await call(server, "talking", "/close_session")
        await asyncio.sleep(150)
        assert server.held == set() and server.num_sessions == 0

    run_virtual(main())


def test_a_session_seeded_again_in_the_midst_of_a_call_keeps_its_count_and_closes_once() -> None:
    async def main() -> None:
        server = sandbox()
        await call(server, "s", "/seed_session", **row("first"))
        long = asyncio.create_task(call(server, "s", "/work", seconds=10))
        await asyncio.sleep(1)
        await call(server, "s", "/seed_session", **row("second"))
        await long
        longer = asyncio.create_task(call(server, "s", "/work", seconds=300))
        await asyncio.sleep(250)
        assert server.num_sessions == 1, "it is at work"
        await longer
        server.closing_s = 250
        await asyncio.sleep(400)
        assert server.num_closings == 1

    run_virtual(main())


def test_a_session_begun_again_starts_anew() -> None:
    async def main() -> None:
        server = sandbox()
        await call(server, "s", "/seed_session", **row("first"))
        await call(server, "s", "/seed_session", **row("second"))
        assert await call(server, "s", "/work", seconds=0) == "second"
        with pytest.raises(ToolError, match="seconds"):
            await call(server, "s", "/work", seconds="many")
        assert server.num_sessions == 1
        assert server.load_figures() == {"sessions": 1}
        await asyncio.sleep(201)
        assert server.num_sessions == 0

    run_virtual(main())
