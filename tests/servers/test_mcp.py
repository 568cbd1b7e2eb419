"""Tools over MCP, by the official SDK: a resources server's for any client, and any server's for an
agent; over real sockets, and with each other."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support import asked

from rollout_kit.api.testing import ScriptedModel, call_response, making, mount
from rollout_kit.errors import ConfigError, PeerError, SessionLost
from rollout_kit.responses import function_calls, output_text
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.peers import Http, Peers
from rollout_kit.session import HEADER, LOST_CODE, Session, entered
from rollout_kit.types import JsonObject, SeedSessionResponse, VerifyRequest, VerifyResponse

pytest.importorskip("mcp")

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError as McpToolError

AGENT = registry.load("responses_api_agents", "simple_agent")


class Row(VerifyRequest):
    expected: int


class Counter(ResourcesServer):
    """Counts in a session; reward for the right count."""

    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        await asyncio.sleep(0.01)
        self.state = {"count": body.get("start", 0)}
        return SeedSessionResponse()

    @tool
    async def count(self, by: int = 1) -> int:
        """Count on; returns where the counter stands."""
        await asyncio.sleep(0.01)
        self.state["count"] += by
        return self.state["count"]

    async def verify(self, body: Row) -> VerifyResponse:
        return body.scored(float(self.state["count"] == body.expected), count=self.state["count"])


@asynccontextmanager
async def counter() -> AsyncIterator[tuple[Counter, str]]:
    """The server on a socket, and the URL of its MCP endpoint."""
    service = making(Counter, mcp=True)(Peers({}), "counter")
    assert isinstance(service, Counter)
    sock = bound_socket("127.0.0.1", 0)
    url = url_of(sock)
    async with service.serving(sock):
        yield service, f"{url}/mcp"


STATELESS = "2026-07-28"


@asynccontextmanager
async def client(url: str, mode: str = "legacy", **headers: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=None) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as found,
    ):
        yield found


async def said(asker: Client, name: str, **arguments: Any) -> str:
    result = await asker.call_tool(name, arguments)
    text = "".join(part.text for part in result.content)
    return f"error: {text}" if result.is_error else text


def test_a_client_sees_the_tools_and_has_a_session_for_as_long_as_it_is_there() -> None:
    async def main() -> None:
        async with counter() as (service, url):
            async with client(url) as one, client(url) as other:
                [found] = (await one.list_tools()).tools
                assert (found.name, found.description) == (
                    "count",
                    "Count on; returns where the counter stands.",
                )
                assert found.input_schema["properties"]["by"]["type"] == "integer"
                counts = await asyncio.gather(*(said(one, "count", by=2) for _ in range(5)))
                assert sorted(map(int, counts)) == [2, 4, 6, 8, 10]
                assert await said(other, "count") == "1", "a session of its own"
                assert "bad arguments: by" in await said(one, "count", by="many")
                assert "there is no tool 'verify'" in await said(one, "verify")
                assert service.num_sessions == 2
            assert service.num_sessions == 0, "it ends with its client"

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["auto", STATELESS])
def test_a_stateless_client_opens_sessions_and_names_one_in_each_call(mode: str) -> None:
    async def main() -> None:
        async with counter() as (service, url), client(url, mode) as asker:
            listed = {each.name: each.input_schema for each in (await asker.list_tools()).tools}
            assert [*listed] == ["open_session", "count", "end_session"]
            assert listed["count"]["required"] == ["session_handle"]
            one, other = [await said(asker, "open_session") for _ in range(2)]
            counts = [await said(asker, "count", by=2, session_handle=one) for _ in range(2)]
            counts.append(await said(asker, "count", session_handle=other))
            assert counts == ["2", "4", "1"]
            assert "bad arguments: by" in await said(asker, "count", by="x", session_handle=one)
            assert "there is no tool 'verify'" in await said(asker, "verify", session_handle=one)
            assert service.num_sessions == 2
            assert await said(asker, "end_session", session_handle=one) == "ended"
            assert service.num_sessions == 1
            with pytest.raises(MCPError, match="not open here") as caught:
                await said(asker, "count", session_handle=one)
            assert caught.value.code == LOST_CODE

    asyncio.run(main())


@pytest.mark.parametrize("arguments", [{}, {"session_handle": 7}, {"session_handle": "s1"}])
def test_a_handle_must_be_one_that_was_opened_over_mcp(arguments: JsonObject) -> None:
    async def main() -> None:
        async with counter() as (service, url):
            await service.ensure_session(Session("s1"))  # of a rollout
            async with client(url, STATELESS) as asker:
                text = await said(asker, "count", **arguments)
                assert "count needs the session_handle that open_session returns" in text
            async with client(url, STATELESS, **{HEADER: "s1"}) as asker:
                [found] = (await asker.list_tools()).tools
                assert found.name == "count" and await said(asker, "count") == "1"

    asyncio.run(main())


def test_a_tool_that_would_stand_for_another_one_is_refused() -> None:
    class Opener(Counter):
        @tool
        async def open_session(self) -> str:
            """Has a name that means something else."""
            return ""

    async def main() -> None:
        async with mount({"opener": making(Opener, mcp=True)}, "http"):
            pass

    with pytest.raises(ConfigError, match="opener: over MCP the tool 'open_session' cannot be"):
        asyncio.run(main())


MODES = ["legacy", STATELESS]
NUMBERS = [12, pytest.param(200, marks=pytest.mark.slow)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_clients", NUMBERS)
def test_each_client_of_the_sdk_has_a_session(num_clients: int, mode: str) -> None:
    async def play(url: str, number: int, places: asyncio.Semaphore) -> str:
        async with places, client(url, mode) as asker:
            handle = {}
            if mode == STATELESS:
                handle = {"session_handle": await said(asker, "open_session")}
            await said(asker, "count", by=number, **handle)
            reached = await said(asker, "count", **handle)
            if handle:
                await said(asker, "end_session", **handle)
            return reached

    async def main() -> None:
        async with counter() as (service, url):
            places = asyncio.Semaphore(16)
            played = (play(url, number, places) for number in range(num_clients))
            counts = await asyncio.gather(*played)
            assert counts == [str(number + 1) for number in range(num_clients)]
            assert service.num_sessions == 0

    asyncio.run(main())


def test_a_request_that_names_a_session_is_in_it() -> None:
    async def main() -> None:
        async with mount({"counter": making(Counter, mcp=True)}, "http") as peers:
            url = url_to(peers, "counter")
            session = Session("s1")
            async with client(url, **{HEADER: "s1"}) as asker:
                with pytest.raises(MCPError, match="not open here"):
                    await said(asker, "count")
                with entered(session):
                    await peers.call("counter", "/seed_session", row(12, start=10), dict)
                    assert await said(asker, "count", by=2) == "12"
                    answered = {**row(12), "response": {"output": []}}
                    assert (await peers.call("counter", "/verify", answered, dict))["reward"] == 1.0
                    await peers.call("counter", "/close_session", {}, dict)
                with pytest.raises(MCPError, match="not open here"):
                    await said(asker, "count")

    asyncio.run(main())


def row(expected: int, **more: Any) -> JsonObject:
    return {"responses_create_params": {"input": []}, "expected": expected, **more}


def url_to(peers: Peers, name: str) -> str:
    transport = peers.transport(name)
    assert isinstance(transport, Http)
    return f"{transport.urls[0]}/mcp"


def notebook() -> MCPServer:
    """Of somebody else: notes by connection, which knows no session of ours."""
    server = MCPServer("notebook")
    notes: dict[str, list[str]] = {}

    @server.tool()
    async def note(text: str, ctx: Context) -> str:
        """Write something down; returns all that was."""
        await asyncio.sleep(0.01)
        own = notes.setdefault(ctx.headers["mcp-session-id"], [])
        own.append(text)
        return " ".join(own)

    @server.tool()
    async def count(ctx: Context) -> str:
        """Has the name of another server's tool."""
        return f"{len(notes)} notebooks"

    @server.tool()
    async def fail() -> str:
        raise McpToolError("no more pages")

    return server


@asynccontextmanager
async def on_a_socket(app: Any) -> AsyncIterator[str]:
    import uvicorn

    sock = bound_socket("127.0.0.1", 0)
    url = url_of(sock)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    running = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"{url}/mcp"
    finally:
        server.should_exit = True
        await running


def agent(mcp_servers: Callable[[Peers], JsonObject]) -> Any:
    wiring = {"resources_server": {"name": "counter"}, "model_server": {"name": "policy_model"}}
    return lambda peers, name: making(AGENT, **wiring, mcp_servers=mcp_servers(peers))(peers, name)


def writer(params: JsonObject) -> JsonObject | str:
    """Calls what the user says, one after the other, and repeats what the last one answered."""
    calls = json.loads(asked({"input": params["input"][:1]}))
    made = len(function_calls(params["input"]))
    if made < len(calls):
        name, arguments = calls[made]
        return call_response((name, json.dumps(arguments)))
    return str(params["input"][-1]["output"])


def task(*calls: Any, expected: int = 0) -> JsonObject:
    asked_for = {"input": [{"role": "user", "content": json.dumps(calls)}]}
    return {"responses_create_params": asked_for, "expected": expected}


def test_an_agent_uses_tools_of_an_mcp_server_each_rollout_over_a_connection_of_its_own() -> None:
    model = ScriptedModel(writer)

    async def main() -> list[str]:
        app = notebook().streamable_http_app()
        async with on_a_socket(app) as url:
            servers = {
                "policy_model": lambda peers, name: model,
                "counter": making(Counter),
                "agent": agent(lambda peers: {"book": {"url": url, "timeout_s": 10}}),
            }
            async with mount(servers) as peers:
                rows = [
                    task(["note", {"text": f"a{n}"}], ["note", {"text": f"b{n}"}]) for n in range(6)
                ]
                rows += [task(["fail", {}]), task(["note", {"texts": 1}]), task(["verify", {}])]
                runs = (peers.call("agent", "/run", each, dict) for each in rows)
                return [output_text(run["response"]) for run in await asyncio.gather(*runs)]

    texts = asyncio.run(main())
    assert texts[:6] == [f"a{n} b{n}" for n in range(6)]
    assert texts[6].startswith("error: ") and "no more pages" in texts[6]
    assert texts[7].startswith("error: ") and "text" in texts[7]
    assert texts[8].startswith("error: no tool 'verify'; there are: count, fail, note")
    names = [each["name"] for each in model.calls[0]["tools"]]
    assert names == ["note", "count", "fail"], "the MCP server's 'count' takes the other's place"


def adder(seen: list[str]) -> MCPServer:
    """Of somebody else, without state. Notes the protocol versions of the calls."""
    server = MCPServer("adder")

    @server.tool()
    async def add(a: int, b: int, ctx: Context) -> int:
        """Add two integers."""
        seen.append(ctx.headers["mcp-protocol-version"])
        return a + b

    return server


@pytest.mark.parametrize(
    ("protocol", "version"), [("sessions", "2025-11-25"), (STATELESS, STATELESS)]
)
@pytest.mark.parametrize("num_rollouts", NUMBERS)
def test_rollouts_use_a_server_of_the_sdk(num_rollouts: int, protocol: str, version: str) -> None:
    seen: list[str] = []

    async def main() -> list[str]:
        async with on_a_socket(adder(seen).streamable_http_app()) as url:
            servers = {
                "policy_model": lambda peers, name: ScriptedModel(writer),
                "counter": making(Counter),
                "agent": agent(lambda peers: {"sums": {"url": url, "protocol": protocol}}),
            }
            async with mount(servers) as peers:
                places = asyncio.Semaphore(16)

                async def run(number: int) -> str:
                    async with places:
                        row = task(["add", {"a": number, "b": 1}])
                        return output_text(
                            (await peers.call("agent", "/run", row, dict))["response"]
                        )

                return await asyncio.gather(*(run(number) for number in range(num_rollouts)))

    assert asyncio.run(main()) == [str(number + 1) for number in range(num_rollouts)]
    assert seen == [version] * num_rollouts


def test_an_agent_calls_the_tools_of_its_own_resources_server_over_mcp() -> None:
    model = ScriptedModel(writer)

    async def main() -> list[JsonObject]:
        servers = {
            "policy_model": lambda peers, name: model,
            "counter": making(Counter, mcp=True),
            "agent": agent(lambda peers: {"counter": {"url": url_to(peers, "counter")}}),
        }
        async with mount(servers, "http") as peers:
            rows = [
                task(["count", {"by": n}], ["count", {}], expected=n + 1 + (n == 3))
                for n in range(6)
            ]
            return await asyncio.gather(*(peers.call("agent", "/run", r, dict) for r in rows))

    found = asyncio.run(main())
    assert [each["reward"] for each in found] == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert [each["count"] for each in found] == [n + 1 for n in range(6)]
    assert [each["name"] for each in model.calls[0]["tools"]] == ["count"]


@pytest.mark.parametrize(
    ("more", "names"),
    [({}, ["note", "count", "fail", "b_note", "b_count", "b_fail"]), ({"tools": []}, None)],
)
def test_tools_of_one_name_are_told_apart_and_can_be_chosen(
    more: JsonObject, names: list[str] | None
) -> None:
    model = ScriptedModel(lambda params: "done")

    async def main() -> None:
        async with on_a_socket(notebook().streamable_http_app()) as url:
            both = {"a": {"url": url, **more}, "b": {"url": url, **more}}
            servers = {
                "policy_model": lambda peers, name: model,
                "counter": making(Counter),
                "agent": agent(lambda peers: both),
            }
            async with mount(servers) as peers:
                await peers.call("agent", "/run", task(), dict)

    asyncio.run(main())
    offered = [each["name"] for each in model.calls[0]["tools"]]
    assert offered == (names or ["count"])


def test_a_session_that_is_gone_starts_the_attempt_anew_and_is_nothing_for_the_policy() -> None:
    class Forgetful(Counter):
        async def verify(self, body: Row) -> VerifyResponse:
            raise AssertionError("there is nothing to verify")

        @tool
        async def count(self, by: int = 1) -> int:
            """Loses the session."""
            raise SessionLost("this server was started again")

    async def main() -> None:
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(writer),
            "counter": making(Forgetful, mcp=True),
            "agent": agent(lambda peers: {"counter": {"url": url_to(peers, "counter")}}),
        }
        async with mount(servers, "http") as peers:
            await peers.call("agent", "/run", task(["count", {}]), dict)

    with pytest.raises(SessionLost, match="started again"):
        asyncio.run(main())


def test_an_mcp_server_that_is_not_there_is_named() -> None:
    async def main() -> None:
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(["done"]),
            "counter": making(Counter),
            "agent": agent(lambda peers: {"gone": {"url": "http://127.0.0.1:9/mcp"}}),
        }
        async with mount(servers) as peers:
            await peers.call("agent", "/v1/responses", {"input": "?"}, dict)

    with pytest.raises(PeerError, match=r"gone: the MCP server at http://127\.0\.0\.1:9/mcp"):
        asyncio.run(main())


@pytest.mark.parametrize("is_agent", [True, False])
def test_without_the_sdk_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, is_agent: bool
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mcp.server", None)  # type: ignore[arg-type]

    async def main() -> None:
        book = {"book": {"url": "http://127.0.0.1:9/mcp"}}
        one = agent(lambda peers: book) if is_agent else making(Counter, mcp=True)
        async with mount({"one": one}, "http"):
            pass

    with pytest.raises(ConfigError, match=r"pip install 'rollout-kit\[mcp\]'"):
        asyncio.run(main())
