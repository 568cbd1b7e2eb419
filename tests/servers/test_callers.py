"""A caller that is gone cancels its work along the whole chain, and a late request is dropped."""

import asyncio
import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from endpoint import endpoint
from support import HANG_S, eventually, row
from workplace import Workplace

from rollout_kit.api.testing import ScriptedModel, call_response, making, mount, text_response
from rollout_kit.errors import PeerTimeout
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.service import Service, post
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport import caller as callers
from rollout_kit.serving.transport.app import served
from rollout_kit.serving.transport.caller import deadline_header, read_deadline
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


class Gate:
    """Work that waits until it is cancelled."""

    def __init__(self) -> None:
        self.has_begun, self.was_cancelled = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), HANG_S)


class Endless(ResourcesServer):
    """A tool and a verifier that do not end by themselves."""

    def __init__(self, config: Any, peers: Peers, name: str) -> None:
        super().__init__(config, peers, name)
        self.tool_gate, self.verify_gate = Gate(), Gate()
        self.num_closed = 0

    @tool
    async def ponder(self) -> str:
        await self.tool_gate.wait()
        return ""

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        await self.verify_gate.wait()
        return body.scored(1.0)

    async def close_session(self, body: JsonObject) -> JsonObject:
        await asyncio.sleep(0)
        self.num_closed += 1
        return {}


@asynccontextmanager
async def environment(answer: Callable[[JsonObject], Any]) -> AsyncIterator[tuple[Peers, Any, Any]]:
    """An agent, its model and its resources server, each on a socket of its own."""
    made: dict[str, Any] = {}

    def resources(peers: Peers, name: str) -> Service:
        made["resources"] = Endless(Endless.Config(), peers, name)
        return made["resources"]

    def model(peers: Peers, name: str) -> Service:
        made["model"] = ScriptedModel(answer, peers, name)
        return made["model"]

    agent = registry.load("responses_api_agents", "simple_agent")
    wiring = {"resources_server": {"name": "endless"}, "model_server": {"name": "policy_model"}}
    servers = {"policy_model": model, "endless": resources, "agent": making(agent, **wiring)}
    async with mount(servers, "http") as peers:
        yield peers, made["resources"], made["model"]


def test_a_caller_that_leaves_cancels_the_tool_call_of_its_agent() -> None:
    async def main() -> None:
        async with environment(lambda params: call_response(("ponder", "{}"))) as (peers, env, _):
            asked = asyncio.create_task(peers.call("agent", "/run", row("q"), dict))
            await soon(env.tool_gate.has_begun)
            asked.cancel()
            await soon(env.tool_gate.was_cancelled)
            while not env.num_closed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_caller_that_leaves_cancels_the_verdict() -> None:
    async def main() -> None:
        async with environment(lambda params: text_response("done")) as (peers, env, _):
            asked = asyncio.create_task(peers.call("agent", "/run", row("q"), dict))
            await soon(env.verify_gate.has_begun)
            asked.cancel()
            await soon(env.verify_gate.was_cancelled)

    asyncio.run(main())


class Chain(Service):
    """Calls another server, and counts the requests that reach it."""

    kind = "resources_servers"
    calls = 0

    @post("/ask")
    async def ask(self, body: JsonObject) -> JsonObject:
        type(self).calls += 1
        return {}


def request_bytes(path: str, body: bytes = b"{}") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    return ("\r\n".join(lines) + f"\r\ncontent-length: {len(body)}\r\n\r\n").encode() + body


def test_requests_of_callers_that_left_while_the_server_was_stopped_are_dropped() -> None:
    async def main() -> int:
        Chain.calls = 0
        sock = bound_socket("127.0.0.1", 0)
        service = Chain(Chain.Config(), Peers({}), "chain")
        async with service.serving(sock), _client() as client:
            await client.post(f"{url_of(sock)}/ask", b"{}")
            for _ in range(50):  # the loop does not run meanwhile, as if the process was stopped
                with socket.create_connection(sock.getsockname()) as connection:
                    connection.sendall(request_bytes("/ask"))
            await client.post(f"{url_of(sock)}/ask", b"{}")
        return Chain.calls

    assert asyncio.run(main()) == 2


def test_a_request_that_arrives_after_its_deadline_is_dropped() -> None:
    async def main() -> list[int]:
        Chain.calls = 0
        sock = bound_socket("127.0.0.1", 0)
        service = Chain(Chain.Config(), Peers({}), "chain")
        found = []
        async with service.serving(sock), _client() as client:
            for seconds in (-1, 60):
                late = {callers.HEADER: deadline_header(seconds)}
                found.append((await client.post(f"{url_of(sock)}/ask", b"{}", headers=late)).status)
        return [*found, Chain.calls]

    assert asyncio.run(main()) == [504, 200, 1]


@asynccontextmanager
async def _client() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    try:
        yield client
    finally:
        await client.close()


def test_a_deadline_of_another_machine_is_not_compared_with_this_clock() -> None:
    assert read_deadline("1.0 another-machine") == inf
    assert read_deadline("nonsense") == read_deadline("") == inf
    assert time.monotonic() < read_deadline(deadline_header(60)) < time.monotonic() + 61


def test_a_request_on_behalf_of_a_caller_has_no_later_deadline() -> None:
    class Outer(Service):
        kind = "resources_servers"

        @post("/outer")
        async def outer(self, body: JsonObject) -> JsonObject:
            return {"deadline": read_deadline(deadline_header(3600))}

    async def main() -> tuple[float, float]:
        sock = bound_socket("127.0.0.1", 0)
        service = Outer(Outer.Config(), Peers({}), "outer")
        async with served(service.build_app(), sock), _client() as client:
            header = deadline_header(60)
            reply = await client.post(
                f"{url_of(sock)}/outer", b"{}", headers={callers.HEADER: header}
            )
        return read_deadline(header), float(reply.text().split(":")[1].rstrip("}"))

    given, passed_on = asyncio.run(main())
    assert given == pytest.approx(passed_on, abs=0.001)


def test_work_for_a_caller_that_left_sends_nothing_more() -> None:
    """The end of a connection that the loop has not handled yet is seen before a request."""

    class Relay(Service):
        kind = "resources_servers"
        url = ""
        refused: BaseException | None = None

        @post("/relay")
        async def relay(self, body: JsonObject) -> JsonObject:
            connection.close()
            try:
                await client.post(f"{self.url}/ask", b"{}")
            except BaseException as error:
                Relay.refused = error
                raise
            return {}

    async def main() -> None:
        nonlocal connection, client
        Chain.calls = 0
        first, second = bound_socket("127.0.0.1", 0), bound_socket("127.0.0.1", 0)
        relay = Relay(Relay.Config(), Peers({}), "relay")
        chain = Chain(Chain.Config(), Peers({}), "chain")
        async with relay.serving(first), chain.serving(second), _client() as client:
            relay.url = url_of(second)
            await client.post(f"{relay.url}/ask", b"{}")  # a connection that is open already
            connection = socket.create_connection(first.getsockname())
            connection.sendall(request_bytes("/relay"))
            while Relay.refused is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    connection: socket.socket
    client: HttpClient
    asyncio.run(main())
    assert Chain.calls == 1 and isinstance(Relay.refused, asyncio.CancelledError | PeerTimeout)


def load(port: int, server: str) -> int:
    """Requests that a server of a running `ng_run` works on."""
    return health(port, server)["load"]["in_flight"]


def health(port: int, server: str) -> Any:
    return read_url(f"{url_of_server(port, server)}/health")


def url_of_server(port: int, server: str) -> str:
    instances = read_url(f"http://127.0.0.1:{port}/server_instances")
    return next(each["urls"][0] for each in instances if each["name"] == server)


def read_url(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=HANG_S) as reply:
        return json.load(reply)


def never_done(body: JsonObject) -> tuple[int, Any]:
    return 200, call_response(("nothing", "{}"))


def test_a_killed_collector_ends_the_work_of_ng_run(tmp_path: Path) -> None:
    with endpoint(never_done) as model:
        place = Workplace(tmp_path, model)
        place.tasks(64)
        with place.ng_run() as (_, port, _):
            argv = [*place.collect_argv()[1:], f"+head_server.port={port}"]
            collector = place.start("collect_rollouts", *argv, "+num_samples_in_parallel=16")
            eventually(lambda: len(model.requests) >= 64)
            model.num_answered = held = len(model.requests) + 16
            eventually(lambda: len(model.requests) == held + 16)
            collector.kill()
            collector.communicate()
            eventually(lambda: load(port, "echo_agent") == load(port, "policy_model") == 0)
            model.num_answered = inf
            assert len(model.requests) == held + 16


def test_a_model_server_that_was_stopped_sends_no_request_of_callers_that_left(
    tmp_path: Path,
) -> None:
    with endpoint(never_done) as model:
        place = Workplace(tmp_path, model)
        place.tasks(64)
        with place.ng_run() as (_, port, said):
            pid = int(re.search(r"policy_model .*pid (\d+)", said)[1])  # type: ignore[index]
            url = url_of_server(port, "policy_model")
            agent = urlsplit(url_of_server(port, "echo_agent"))
            os.kill(pid, signal.SIGSTOP)
            try:
                rollouts = [
                    socket.create_connection((agent.hostname, agent.port)) for _ in range(64)
                ]
                for number, rollout in enumerate(rollouts):
                    rollout.sendall(request_bytes("/run", json.dumps(row(f"q{number}")).encode()))
                eventually(lambda: load(port, "echo_agent") == 64)
                for rollout in rollouts:
                    rollout.close()
                eventually(lambda: load(port, "echo_agent") == 0)
            finally:
                os.kill(pid, signal.SIGCONT)
            asked = json.dumps({"input": [{"role": "user", "content": "the last"}]}).encode()
            request = urllib.request.Request(
                f"{url}/v1/responses", asked, {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=HANG_S):
                pass
            assert list(model.saw) == ["the last"]
