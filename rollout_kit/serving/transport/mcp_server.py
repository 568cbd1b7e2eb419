"""A resources server's tools over MCP, at `/mcp` (streamable HTTP, official SDK).

A request with a session header belongs to that session, so an agent's MCP client works on the state
that `/verify` reads. Any other client gets a session of its own, which ends with its MCP session;
it must use a protocol version that has sessions, because tools have state.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol
from weakref import WeakValueDictionary

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import ConfigError, RolloutError, SessionLost, how_to_install
from ...session import HEADER, LOST_CODE, Session, entered
from .access import Accepted
from .app import served
from .encoding import encode_reply

PATH = "/mcp"

MCP_SESSION, MCP_VERSION = "mcp-session-id", "mcp-protocol-version"
"""Headers of the protocol."""

METHOD_NOT_FOUND = -32601
"""Error code after which a client falls back to a version that has sessions."""


class ToolServer(Protocol):
    """What a server with tools has, so that they can be called over MCP."""

    name: str
    config: Any
    tools: ClassVar[dict[str, Any]]

    def build_app(self, run_id: str = "") -> Any: ...

    async def ensure_session(self, session: Session) -> None: ...

    async def answer(self, path: str, raw: bytes) -> Any: ...


@asynccontextmanager
async def serving(
    service: ToolServer, sock: socket.socket, run_id: str, token: Accepted
) -> AsyncIterator[None]:
    """Context in which the server listens on `sock`, with its tools at `/mcp` too."""
    try:
        manager = _manager(service)
    except BaseException:
        sock.close()
        raise
    app = _mount(service.build_app(run_id), _Door(service, manager))
    ready, done = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(_run(manager, ready, done))
    try:
        await ready.wait()
        async with served(app, sock, token):
            yield
    finally:
        done.set()
        await running


async def _run(manager: Any, ready: asyncio.Event, done: asyncio.Event) -> None:
    """Run the SDK's manager in a task of its own: around other code it would wrap exceptions."""
    async with manager.run():
        ready.set()
        await done.wait()


def _manager(service: ToolServer) -> Any:
    """The SDK's session manager; ConfigError if the SDK is missing."""
    try:
        from mcp import MCPError
        from mcp.server import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
    except ImportError as error:
        raise ConfigError(
            f"{service.name}: mcp: true needs the MCP SDK ({error}):"
            f" {how_to_install('rollout-kit[mcp]')}"
        ) from None

    listed = [
        Tool(
            name=name,
            description=tool.schema["description"],
            input_schema=tool.schema["parameters"],
        )
        for name, tool in service.tools.items()
    ]

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        try:
            headers = context.request.headers
            session = Session(headers.get(HEADER) or _own_session_id(headers[MCP_SESSION]))
            if HEADER not in headers:  # several first calls may arrive at once
                async with beginning.setdefault(session.id, asyncio.Lock()):
                    await service.ensure_session(session)
            text, failed = await _call_tool(service, session, params), False
        except SessionLost as error:  # not text for the model: the rollout needs a new attempt
            raise MCPError(LOST_CODE, error.message) from None
        except RolloutError as error:
            text, failed = error.message, True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    server = Server(service.name, on_list_tools=list_tools, on_call_tool=call_tool)
    idle_s = float(service.config.get("session_timeout_s") or 7200)
    return StreamableHTTPSessionManager(server, json_response=True, session_idle_timeout=idle_s)


async def _call_tool(service: ToolServer, session: Session, params: Any) -> str:
    if params.name not in service.tools:
        raise RolloutError(
            f"there is no tool '{params.name}'; there are: {', '.join(service.tools)}"
        )
    path = f"/{params.name}"
    with entered(session):
        answer = await service.answer(path, orjson.dumps(params.arguments or {}))
    return encode_reply(answer, service.name, path).decode()


def _own_session_id(mcp_session: str) -> str:
    return f"mcp.{mcp_session}"


class _Door:
    """In front of the SDK: refuse clients that have no session and a version without sessions;
    close our session when the client ends its MCP session."""

    def __init__(self, service: ToolServer, manager: Any) -> None:
        self._service, self._manager = service, manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

        headers = Headers(scope=scope)
        version = headers.get(MCP_VERSION)
        knows_sessions = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if HEADER not in headers and not knows_sessions:
            message = f"without {HEADER} a session is needed: initialize one"
            error = {"code": METHOD_NOT_FOUND, "message": message}
            reply = orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error})
            await Response(reply, 400, media_type="application/json")(scope, receive, send)
            return
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self._manager.handle_request(scope, receive, watch)
        if scope["method"] == "DELETE" and status < 300 and (ended := headers.get(MCP_SESSION)):
            with entered(Session(_own_session_id(ended))):
                await self._service.answer("/close_session", b"{}")


def _mount(app: ASGIApp, mcp: ASGIApp) -> ASGIApp:
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        is_mcp = scope["type"] == "http" and scope["path"] == PATH
        await (mcp if is_mcp else app)(scope, receive, send)

    return route
