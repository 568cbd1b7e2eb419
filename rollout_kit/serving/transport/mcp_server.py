"""A resources server's tools over MCP, at `/mcp` (streamable HTTP, official SDK).

A request with a session header belongs to that session, so an agent's MCP client works on the state
that `/verify` reads. Any other client gets a session of its own. In the versions that have sessions
it ends with the MCP session. In the stateless version a client opens it with a tool, and names it
in each call.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from weakref import WeakValueDictionary

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import ConfigError, RolloutError, SessionLost, how_to_install
from ...session import HEADER, LOST_CODE, Session, entered, fresh_id
from ...types import JsonObject
from .access import Accepted
from .app import served
from .encoding import encode_reply

PATH = "/mcp"

MCP_SESSION = "mcp-session-id"
"""Header of the protocol, in the versions that have sessions."""

OPEN, CLOSE, HANDLE = "open_session", "end_session", "session_handle"
"""The tools of stateless clients that open and end a session, and the argument that names it."""

OWN = "mcp."
"""Start of the ids of sessions that MCP clients opened: a handle names no other session."""


class ToolServer(Protocol):
    """What a server with tools has, so that they can be called over MCP."""

    name: str
    config: Any
    tools: Mapping[str, Any]

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
    async with running(manager), served(app, sock, token):
        yield


@asynccontextmanager
async def running(manager: Any) -> AsyncIterator[None]:
    """Context in which a manager answers requests."""
    ready, done = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(_run(manager, ready, done))
    try:
        await ready.wait()
        yield
    finally:
        done.set()
        await task


async def _run(manager: Any, ready: asyncio.Event, done: asyncio.Event) -> None:
    """Run the SDK's manager in a task of its own: around other code it would wrap exceptions."""
    async with manager.run():
        ready.set()
        await done.wait()


ListTools = Callable[[Any], Awaitable[list[JsonObject]]]
"""The schemas that the caller of a request, by its context, is offered."""

CallTool = Callable[[Any, str, JsonObject], Awaitable[str]]
"""The output of a tool, by its name and arguments; RolloutError if it fails."""


def make_manager(name: str, list_tools: ListTools, call_tool: CallTool, **options: Any) -> Any:
    """The SDK's session manager, with its `options`; ConfigError if the SDK is missing."""
    try:
        from mcp import MCPError
        from mcp.server import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
    except ImportError as error:
        raise ConfigError(
            f"{name}: tools over MCP need the SDK ({error}): {how_to_install('rollout-kit[mcp]')}"
        ) from None

    async def on_list(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(
                    name=each["name"],
                    description=each["description"],
                    input_schema=each["parameters"],
                )
                for each in await list_tools(context)
            ]
        )

    async def on_call(context: Any, params: Any) -> CallToolResult:
        try:
            text = await call_tool(context, params.name, dict(params.arguments or {}))
            failed = False
        except SessionLost as error:  # not text for the model: the rollout needs a new attempt
            raise MCPError(LOST_CODE, error.message) from None
        except RolloutError as error:
            text, failed = error.message, True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    server = Server(name, on_list_tools=on_list, on_call_tool=on_call)
    return StreamableHTTPSessionManager(server, json_response=True, **options)


def _manager(service: ToolServer) -> Any:
    """The manager of the sessions with a server."""
    handles, own = SessionHandles(service), [tool.schema for tool in service.tools.values()]
    beginning: Beginning = WeakValueDictionary()

    async def list_tools(context: Any) -> list[JsonObject]:
        return own if _has_session(context) else handles.list_tools()

    async def call_tool(context: Any, name: str, arguments: JsonObject) -> str:
        if not _has_session(context):
            return await handles.call(name, arguments)
        session = await _session_of(service, context.request.headers, beginning)
        return await call_in(service, session, name, arguments)

    idle_s = float(service.config.get("session_timeout_s") or 7200)
    return make_manager(service.name, list_tools, call_tool, session_idle_timeout=idle_s)


Beginning = WeakValueDictionary[str, asyncio.Lock]
"""Sessions that begin, by id."""


def _has_session(context: Any) -> bool:
    """Whether the headers of the request name a session, of ours or of MCP."""
    headers = context.request.headers
    return HEADER in headers or MCP_SESSION in headers


async def _session_of(service: ToolServer, headers: Headers, beginning: Beginning) -> Session:
    if HEADER in headers:
        return Session(headers[HEADER])
    session = Session(f"{OWN}{headers[MCP_SESSION]}")
    async with beginning.setdefault(session.id, asyncio.Lock()):  # first calls may arrive together
        await service.ensure_session(session)
    return session


async def call_in(service: ToolServer, session: Session, name: str, arguments: JsonObject) -> str:
    """The output of a tool of the server; RolloutError if it fails."""
    if name not in service.tools:
        raise RolloutError(f"there is no tool '{name}'; there are: {', '.join(service.tools)}")
    path = f"/{name}"
    with entered(session):
        answer = await service.answer(path, orjson.dumps(arguments))
    return encode_reply(answer, service.name, path).decode()


class SessionHandles:
    """The tools as stateless clients see them: each takes the handle of a session that the client
    has opened. A handle is not guessable, and expires as every session."""

    def __init__(self, service: ToolServer) -> None:
        self._service = service
        for name, tool in service.tools.items():
            if name in (OPEN, CLOSE) or HANDLE in tool.schema["parameters"]["properties"]:
                raise ConfigError(
                    f"{service.name}: over MCP the tool '{name}' cannot be called: {OPEN}, {CLOSE}"
                    f" and the argument {HANDLE} have a meaning of their own; rename it"
                )

    def list_tools(self) -> list[JsonObject]:
        """The schemas of the tools, in the form of `responses_create_params.tools`."""
        return [
            _describe(OPEN, f"Open a session. Returns the {HANDLE} for all other tools.", {}),
            *(
                {**tool.schema, "parameters": _with_handle(tool.schema["parameters"])}
                for tool in self._service.tools.values()
            ),
            _describe(CLOSE, "End a session.", _with_handle({})),
        ]

    async def call(self, name: str, arguments: JsonObject) -> str:
        """A tool's output, or the handle of a new session; RolloutError if the call fails."""
        if name == OPEN:
            session = Session(f"{OWN}{fresh_id()}")
            await self._service.ensure_session(session)
            return session.id
        handle = arguments.pop(HANDLE, None)
        if not isinstance(handle, str) or not handle.startswith(OWN):
            raise RolloutError(f"{name} needs the {HANDLE} that {OPEN} returns, got {handle!r}")
        if name != CLOSE:
            return await call_in(self._service, Session(handle), name, arguments)
        await end_session(self._service, handle)
        return "ended"


def _describe(name: str, description: str, parameters: JsonObject) -> JsonObject:
    whole = {"type": "object", "properties": {}, **parameters}
    return {"name": name, "description": description, "parameters": whole}


def _with_handle(parameters: JsonObject) -> JsonObject:
    """A tool's parameters, with the handle as one more."""
    handle = {"type": "string", "description": f"What {OPEN} returned."}
    return {
        **parameters,
        "properties": {HANDLE: handle, **parameters.get("properties", {})},
        "required": [HANDLE, *parameters.get("required", [])],
    }


async def end_session(service: ToolServer, id: str) -> None:
    """Close a session of the server."""
    with entered(Session(id)):
        await service.answer("/close_session", b"{}")


class _Door:
    """In front of the SDK: close our session when the client ends its MCP session."""

    def __init__(self, service: ToolServer, manager: Any) -> None:
        self._service, self._manager = service, manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self._manager.handle_request(scope, receive, watch)
        ended = Headers(scope=scope).get(MCP_SESSION)
        if scope["method"] == "DELETE" and status < 300 and ended:
            await end_session(self._service, f"{OWN}{ended}")


def _mount(app: ASGIApp, mcp: ASGIApp) -> ASGIApp:
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        is_mcp = scope["type"] == "http" and scope["path"] == PATH
        await (mcp if is_mcp else app)(scope, receive, send)

    return route
