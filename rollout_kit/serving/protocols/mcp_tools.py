"""Tools of MCP servers, connected for one rollout.

Each rollout has its own connection to each server, or its own process of a server that is a
command. So state that a server keeps for a connection belongs to one rollout. A header carries the
rollout's session, in which a resources server of this package calls its tools.
"""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...errors import (
    ConfigError,
    PeerError,
    PeerTimeout,
    RolloutError,
    SessionLost,
    ToolError,
    how_to_install,
)
from ...session import HEADER, LOST_CODE, current_session
from ...types import JsonObject
from ..process_tree import find_marked, kill
from ..tools import SAFE_NAME

REFUSED = frozenset({-32601, -32602, -32603})
"""JSON-RPC codes of errors in the call, which the model should read."""

STATELESS = "2026-07-28"
"""The protocol version without `initialize` and session ids."""

MODES: dict[str, tuple[str, ...]] = {
    "auto": ("legacy", "auto"),
    "sessions": ("legacy",),
    STATELESS: (STATELESS,),
}
"""What the SDK tries for a value of `protocol`. Versions with sessions come first, because servers
keep state by session."""

MARK = "ROLLOUT_KIT_MCP"
"""Environment variable of a command and its descendants; each connection has its own value."""


class McpKeys(BaseModel):
    """Keys of every MCP server, however it is reached."""

    model_config = ConfigDict(extra="forbid")

    tools: list[str] | None = Field(
        None, description="Names of the tools that are offered. Default: all."
    )
    timeout_s: float = Field(60.0, gt=0, description="Time limit of one call.")
    protocol: Literal["auto", "sessions", "2026-07-28"] = Field(
        "auto",
        description="Version of MCP. sessions: up to 2025-11-25. 2026-07-28: stateless requests."
        " auto: sessions if the server knows them.",
    )


class McpServer(McpKeys):
    """One of the `mcp_servers` of an agent."""

    url: str = Field(pattern="^https?://", description="Its endpoint, as http://…/mcp.")
    auth_token: str | None = Field(None, description="Sent as a bearer token.")

    @property
    def place(self) -> str:
        """What an error calls it."""
        return f"the MCP server at {self.url}"


class McpCommand(McpKeys):
    """An MCP server that is a command, which speaks over standard input and output."""

    command: list[str] = Field(min_length=1, description="The program and its arguments.")
    cwd: str | None = Field(None, description="Its working directory.")

    @property
    def place(self) -> str:
        """What an error calls it."""
        return f"the MCP server '{shlex.join(self.command)}'"


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as the policy sees it, with its server and its name there."""

    schema: JsonObject
    server: str
    name: str


@dataclass(frozen=True, slots=True)
class McpTools:
    """The tools of the connected servers. `offered` maps the policy's names to tools; if several
    servers have a name, it is `<server>_<tool>` except for the first."""

    offered: Mapping[str, McpTool]
    clients: Mapping[str, Any]
    servers: Mapping[str, McpServer | McpCommand]

    @property
    def schemas(self) -> list[JsonObject]:
        return [tool.schema for tool in self.offered.values()]

    async def call(self, name: str, arguments: JsonObject) -> str:
        """The tool's output; ToolError if the tool reports an error, PeerError if it does not
        answer."""
        tool = self.offered[name]
        limit_s = self.servers[tool.server].timeout_s
        try:
            async with asyncio.timeout(limit_s):
                result = await self.clients[tool.server].call_tool(tool.name, arguments)
        except TimeoutError:
            why = f"the MCP tool '{name}' did not answer within {limit_s:g} s"
            raise PeerTimeout(why, server=tool.server) from None
        except Exception as error:  # the SDK raises many types
            code = getattr(error, "code", None)
            if code in REFUSED:
                raise ToolError(str(error)) from None
            if code == LOST_CODE:
                raise SessionLost(str(error), server=tool.server) from None
            place = self.servers[tool.server].place
            why = f"the MCP tool '{name}' cannot be called: {error} ({place})"
            raise PeerError(why, server=tool.server) from error
        text = "\n".join(_text(part) for part in result.content)
        if result.is_error:
            raise ToolError(text)
        return text


NO_MCP = McpTools({}, {}, {})


def check_sdk(name: str) -> None:
    """Raise ConfigError if the SDK is missing, before any model call."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{name}: tools over MCP need the MCP SDK ({error}):"
            f" {how_to_install('rollout-kit[mcp]')}"
        ) from None


@asynccontextmanager
async def connected(servers: Mapping[str, McpServer | McpCommand]) -> AsyncIterator[McpTools]:
    """Context with connections to all servers."""
    try:
        async with AsyncExitStack() as stack:
            clients, offered = {}, {}
            for name, server in servers.items():
                clients[name] = client = await stack.enter_async_context(_client(name, server))
                for tool in await _list_tools(name, server, client):
                    known = f"{name}_{tool.name}" if tool.name in offered else tool.name
                    schema = {**tool.schema, "name": known}
                    offered[known] = McpTool(schema, name, tool.name)
            yield McpTools(offered, clients, servers)
    except BaseExceptionGroup as group:  # the SDK's task groups wrap exceptions
        raise _first(group) from group


class McpConnection:
    """The tools of one server, connected by a task of its own: the SDK requires that the task which
    connects also disconnects."""

    def __init__(self, name: str, server: McpServer | McpCommand) -> None:
        self._servers = {name: server}
        self._closing = asyncio.Event()
        self._tools: asyncio.Future[McpTools] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep())

    async def tools(self) -> McpTools:
        """The connected tools; PeerError if the server cannot be used. The connection stays if the
        caller is cancelled."""
        return await asyncio.shield(self._tools)

    async def close(self) -> None:
        """Disconnect, and wait until the processes of a command have ended."""
        self._closing.set()
        if not self._tools.done():
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _keep(self) -> None:
        try:
            async with connected(self._servers) as tools:
                self._tools.set_result(tools)
                await self._closing.wait()
        except RolloutError as error:
            if not self._tools.done():
                self._tools.set_exception(error)
                self._tools.exception()  # nobody may ask for it
        finally:
            self._tools.cancel()


@asynccontextmanager
async def _client(name: str, server: McpServer | McpCommand) -> AsyncIterator[Any]:
    from mcp import Client

    async with _transports(server) as connect, AsyncExitStack() as stack:
        modes = MODES[server.protocol]
        client: Any = None
        for mode in modes:
            client = Client(connect(), cache=None, mode=mode)
            try:
                async with asyncio.timeout(server.timeout_s):
                    await stack.enter_async_context(client)
            except Exception as error:
                if mode == modes[-1]:
                    raise _unreachable(name, server, error) from error
            else:
                break
        yield client


@asynccontextmanager
async def _transports(server: McpServer | McpCommand) -> AsyncIterator[Callable[[], Any]]:
    """Context with a function that makes a transport to the server, for one try to connect."""
    if isinstance(server, McpCommand):
        from mcp import StdioServerParameters

        program, *arguments = server.command
        mark = token_hex(8)
        env = {**os.environ, MARK: mark}  # of a process that holds no key
        given = StdioServerParameters(command=program, args=arguments, env=env, cwd=server.cwd)
        try:
            yield lambda: given
        finally:
            # a process that the server started may outlive it
            left = await asyncio.to_thread(find_marked, MARK, mark)
            kill(left)
        return
    import httpx2  # installed with the SDK
    from mcp.client.streamable_http import streamable_http_client

    headers = {} if server.auth_token is None else {"authorization": f"Bearer {server.auth_token}"}
    if session := current_session():
        headers[HEADER] = session.id
    async with httpx2.AsyncClient(headers=headers, timeout=server.timeout_s) as http:
        yield lambda: streamable_http_client(server.url, http_client=http)


async def _list_tools(name: str, server: McpServer | McpCommand, client: Any) -> list[McpTool]:
    """The server's tools, from all pages."""
    found: list[McpTool] = []
    cursor = None
    while True:
        try:
            page = await client.list_tools(cursor=cursor)
        except Exception as error:
            raise _unreachable(name, server, error) from error
        found += [
            McpTool(_schema(tool), name, tool.name)
            for tool in page.tools
            if SAFE_NAME.fullmatch(tool.name)
            and (server.tools is None or tool.name in server.tools)
        ]
        if not (cursor := page.next_cursor):
            return found


def _schema(tool: Any) -> JsonObject:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.input_schema,
        "strict": False,
    }


def _text(part: Any) -> str:
    text = getattr(part, "text", None)
    return text if isinstance(text, str) else f"[{part.type}]"


def _unreachable(name: str, server: McpServer | McpCommand, error: Exception) -> RolloutError:
    reason = _first(error) if isinstance(error, BaseExceptionGroup) else error
    if isinstance(reason, RolloutError):
        return reason
    return PeerError(f"{server.place} cannot be used: {reason}", server=name)


def _first(group: BaseException) -> BaseException:
    """The first exception in the group; one of our own types if there is any."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    leaves = [_first(each) for each in group.exceptions]
    return next((each for each in leaves if isinstance(each, RolloutError)), leaves[0])
