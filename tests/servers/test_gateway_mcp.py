"""The tools of a session over MCP, at the address of its rollout: by the official SDK's client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("mcp")

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from rollout_kit import (
    ResourcesServer,
    SeedSessionResponse,
    VerifyRequest,
    VerifyResponse,
    tool,
)
from rollout_kit.api.testing import making, mount
from rollout_kit.errors import RolloutError, ToolError
from rollout_kit.serving.gateway.door import Gateway
from rollout_kit.serving.gateway.mcp_door import ADDRESS, SessionTools
from rollout_kit.serving.gateway.recorder import Recorder
from rollout_kit.session import HEADER, Session, entered
from rollout_kit.types import JsonObject

ROW: JsonObject = {"responses_create_params": {"input": "Note it."}}

MODES = ("legacy", "2026-07-28")


class Notebook(ResourcesServer):
    """Keeps notes in a session."""

    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        self.state = []
        return SeedSessionResponse()

    @tool
    async def note(self, text: str) -> str:
        """Keep a text; returns all of them."""
        if not text:
            raise ToolError("there is nothing to note")
        self.state.append(text)
        return ", ".join(self.state)

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(1.0)


class Addresses:
    """A gateway with an address for each of two sessions."""

    def __init__(self, gateway: Gateway, tokens: list[str], lost: list[RolloutError]) -> None:
        self.gateway, self.tokens, self.lost = gateway, tokens, lost

    def url(self, token: str) -> str:
        host, port = self.gateway.address
        return f"http://{host}:{port}/r/{token}/mcp"


@asynccontextmanager
async def addresses() -> AsyncIterator[Addresses]:
    async with mount({"notebook": making(Notebook)}) as peers:
        gateway = Gateway(with_mcp=True)
        await gateway.start()
        tokens, lost = list[str](), list[RolloutError]()
        try:
            for _ in range(2):
                session = Session()
                with entered(session):
                    await peers.call("notebook", "/seed_session", ROW, dict)
                    offered = await peers.call("notebook", "/tools", None, list)
                    recorder = Recorder(peers, "policy_model")
                tools = SessionTools(peers, "notebook", session, offered, lost.append)
                tokens.append(gateway.open(recorder, tools))
            yield Addresses(gateway, tokens, lost)
        finally:
            await gateway.stop()


@asynccontextmanager
async def client(url: str, mode: str, **headers: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=None) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as found,
    ):
        yield found


async def note(asker: Client, text: str) -> str:
    result = await asker.call_tool("note", {"text": text})
    said = "".join(part.text for part in result.content)
    return f"error: {said}" if result.is_error else said


def run(main: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("mode", MODES)
def test_a_client_works_in_the_session_of_its_rollout(mode: str) -> None:
    async def main() -> None:
        async with addresses() as place:
            one, other = map(place.url, place.tokens)
            async with client(one, mode) as first, client(other, mode) as second:
                [found] = (await first.list_tools()).tools
                assert found.name == "note" and found.input_schema["required"] == ["text"]
                assert await note(first, "a") == "a"
                assert await note(second, "b") == "b"
                assert await note(first, "c") == "a, c"
                assert await note(first, "") == "error: there is nothing to note"
                assert (await first.call_tool("verify", {})).is_error
            async with client(one, mode) as again:
                assert await note(again, "d") == "a, c, d", "one session, however it connects"
            assert not place.lost

    run(main)


@pytest.mark.parametrize("mode", MODES)
def test_headers_lead_to_no_other_session(mode: str) -> None:
    async def main() -> None:
        async with addresses() as place:
            mine, theirs = place.tokens
            claims = {ADDRESS: theirs, HEADER: theirs, "x-rollout-session": theirs}
            async with client(place.url(mine), mode, **claims) as hostile:
                assert await note(hostile, "x") == "x"
            async with client(place.url(theirs), mode) as victim:
                assert await note(victim, "y") == "y"

    run(main)


def test_an_address_that_is_guessed_or_has_ended_answers_nothing() -> None:
    async def main() -> None:
        async with addresses() as place, httpx2.AsyncClient() as http:
            mine, theirs = place.tokens
            asked = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "note", "arguments": {"text": "x"}},
            }
            headers = {"accept": "application/json, text/event-stream"}

            async def status(url: str, method: str = "POST", **more: str) -> int:
                sent = await http.request(method, url, json=asked, headers={**headers, **more})
                return sent.status_code

            guesses = (theirs[:-1], theirs.upper() + "x", "", "..", f"{mine}/../{theirs[:-1]}")
            for guess in guesses:
                assert await status(place.url(guess)) == 404
            assert await status(place.url(mine), "GET") == 405
            assert await status(place.url(mine), "DELETE") == 405
            assert await status(place.url(mine)) == 200
            await place.gateway.close(mine)
            assert await status(place.url(mine), **{"mcp-session-id": theirs}) == 404
            assert await status(place.url(theirs)) == 200

    run(main)


def test_an_address_without_tools_has_none_over_mcp() -> None:
    async def main() -> int:
        async with mount({"notebook": making(Notebook)}) as peers:
            gateway = Gateway()
            await gateway.start()
            try:
                token = gateway.open(Recorder(peers, "policy_model"))
                host, port = gateway.address
                async with httpx2.AsyncClient() as http:
                    url = f"http://{host}:{port}/r/{token}/mcp"
                    return (await http.post(url, json={})).status_code
            finally:
                await gateway.stop()

    assert run(main) == 404
