"""The tools of a rollout's session over MCP, at the address of the rollout.

The token in the address alone says which session a request belongs to. Nothing is kept from one
request to the next, so there is no MCP session that another program could take.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from ...errors import RolloutError
from ...session import Session, entered
from ...types import JsonObject
from ..agents.tool_calls import callable_names
from ..tools import refusal_text
from ..transport.bare_http import LAST_CHUNK, BareConnection, BareRequest, chunk, head
from ..transport.mcp_server import make_manager, running
from ..transport.peers import Peers

ADDRESS = "x-rollout-address"
"""Header between the gateway and the SDK, with the token of the address."""

MAX_TOOL_CALLS = 32
"""Calls of tools of one rollout that run at a time."""


class SessionTools:
    """The tools of the resources server `server`, in `session`. `lose` is called with what no
    program can help, such as the end of the session."""

    def __init__(
        self,
        peers: Peers,
        server: str,
        session: Session,
        offered: list[JsonObject],
        lose: Callable[[RolloutError], None],
    ) -> None:
        self._peers, self._server, self._session, self._lose = peers, server, session, lose
        names = callable_names(offered)
        self.offered = [tool for tool in offered if tool.get("name") in names]
        self._num_running = 0

    async def call(self, name: str, arguments: JsonObject) -> str:
        """What a tool returns; RolloutError, with the reason for the program, if it fails."""
        if name not in {tool["name"] for tool in self.offered}:
            raise RolloutError(f"there is no tool '{name}'")
        if self._num_running >= MAX_TOOL_CALLS:
            raise RolloutError(f"more than {MAX_TOOL_CALLS} calls of tools at a time")
        self._num_running += 1
        try:
            with entered(self._session):
                return await self._peers.call(self._server, f"/{name}", arguments, str)
        except RolloutError as error:
            if refusal_text(error) is None:
                self._lose(error)
            raise
        finally:
            self._num_running -= 1


class McpDoor:
    """Answers requests of MCP clients. `find` gives the tools behind a token."""

    def __init__(self, name: str, find: Callable[[str], SessionTools | None]) -> None:
        self._name, self._find = name, find
        self._manager: Any = None
        self._stack = AsyncExitStack()

    async def start(self, max_bytes: int) -> None:
        """ConfigError if the SDK is missing."""

        async def list_tools(context: Any) -> list[JsonObject]:
            return self._tools_of(context).offered

        async def call_tool(context: Any, name: str, arguments: JsonObject) -> str:
            return await self._tools_of(context).call(name, arguments)

        options = {"stateless": True, "max_request_body_size": max_bytes}
        self._manager = make_manager(self._name, list_tools, call_tool, **options)
        await self._stack.enter_async_context(running(self._manager))

    async def stop(self) -> None:
        await self._stack.aclose()

    def _tools_of(self, context: Any) -> SessionTools:
        found = self._find(context.request.headers.get(ADDRESS, ""))
        if found is None:
            raise RolloutError("its rollout has ended")
        return found

    async def answer(self, token: str, request: BareRequest, connection: BareConnection) -> None:
        """Answer one request at the address of a token."""
        if request.method != "POST":  # nothing is sent that was not asked for
            connection.write(head(405, "text/plain", (("allow", "POST"),), 0))
            connection.done()
            return
        headers = [pair for pair in request.headers if pair[0] != ADDRESS.encode()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "root_path": "",
            "query_string": b"",
            "headers": [*headers, (ADDRESS.encode(), token.encode("latin-1"))],
            "client": None,
            "server": None,
        }
        reply, task = _Reply(request, connection), asyncio.current_task()

        def leave() -> None:
            if task is not None:
                task.cancel()

        connection.when_lost = leave
        try:
            await self._manager.handle_request(scope, reply.receive, reply.send)
        except asyncio.CancelledError:
            connection.close()
            raise


class _Reply:
    """What an ASGI application reads of a request, and the reply that it writes."""

    def __init__(self, request: BareRequest, connection: BareConnection) -> None:
        self._request, self._connection = request, connection
        self._is_read = self._has_begun = False
        self._start: JsonObject = {}

    async def receive(self) -> JsonObject:
        if self._is_read:
            await asyncio.Event().wait()  # until the task of the request is cancelled
        self._is_read = True
        return {"type": "http.request", "body": self._request.body, "more_body": False}

    async def send(self, message: JsonObject) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, is_last = message.get("body", b""), not message.get("more_body")
        headers = {name.decode(): value.decode() for name, value in self._start["headers"]}
        content_type, status = headers.get("content-type", "text/plain"), self._start["status"]
        if not self._has_begun and is_last:
            self._connection.write(head(status, content_type, length=len(body)) + body)
            self._connection.done()
            return
        if not self._has_begun:
            self._has_begun = True
            self._connection.write(head(status, content_type))
        if body:
            self._connection.write(chunk(body))
        if is_last:
            self._connection.write(LAST_CHUNK)
            self._connection.done()
