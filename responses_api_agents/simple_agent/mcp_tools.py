"""Tools of MCP servers, connected for one rollout.

Each rollout has its own connection to each server, so state that a server keeps for a connection
belongs to one rollout. A header carries the rollout's session, in which a resources server of this
package calls its tools.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollout_kit.errors import (
    ConfigError,
    PeerError,
    PeerTimeout,
    RolloutError,
    SessionLost,
    ToolError,
    how_to_install,
)
from rollout_kit.serving.tools import SAFE_NAME
from rollout_kit.session import HEADER, LOST_CODE, current_session
from rollout_kit.types import JsonObject

REFUSED = frozenset({-32601, -32602, -32603})
"""JSON-RPC codes of errors in the call, which the model should read."""

MODES = ("legacy", "auto")
"""Protocol versions, those with sessions first, because servers keep state by session."""


class McpServer(BaseModel):
    """One of the `mcp_servers` of an agent."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(pattern="^https?://", description="Its endpoint, as http://…/mcp.")
    auth_token: str | None = Field(None, description="Sent as a bearer token.")
    tools: list[str] | None = Field(None, description="Only these of its tools. Default: all.")
    timeout_s: float = Field(60.0, gt=0, description="Time limit of one call.")


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
    servers: Mapping[str, McpServer]

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
            why = f"the MCP tool '{name}' cannot be called: {error}"
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
            f"{name}: mcp_servers needs the MCP SDK ({error}): {how_to_install('rollout-kit[mcp]')}"
        ) from None


@asynccontextmanager
async def connected(servers: Mapping[str, McpServer]) -> AsyncIterator[McpTools]:
    """Context with connections to all servers."""
    try:
        async with AsyncExitStack() as stack:
            clients, offered = {}, {}
            for name, server in servers.items():
                clients[name] = client = await stack.enter_async_context(_client(name, server))
                for tool in await _listed(name, server, client):
                    known = f"{name}_{tool.name}" if tool.name in offered else tool.name
                    schema = {**tool.schema, "name": known}
                    offered[known] = McpTool(schema, name, tool.name)
            yield McpTools(offered, clients, servers)
    except BaseExceptionGroup as group:  # the SDK's task groups wrap exceptions
        raise _first(group) from group


@asynccontextmanager
async def _client(name: str, server: McpServer) -> AsyncIterator[Any]:
    import httpx2  # installed with the SDK
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {} if server.auth_token is None else {"authorization": f"Bearer {server.auth_token}"}
    if session := current_session():
        headers[HEADER] = session.id
    async with (
        httpx2.AsyncClient(headers=headers, timeout=server.timeout_s) as http,
        AsyncExitStack() as stack,
    ):
        for mode in MODES:
            transport = streamable_http_client(server.url, http_client=http)
            client = Client(transport, cache=None, mode=mode)
            try:
                async with asyncio.timeout(server.timeout_s):
                    await stack.enter_async_context(client)
            except Exception as error:
                if mode == MODES[-1]:
                    raise _unreachable(name, server, error) from error
            else:
                break
        yield client


async def _listed(name: str, server: McpServer, client: Any) -> list[McpTool]:
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


def _unreachable(name: str, server: McpServer, error: Exception) -> RolloutError:
    reason = _first(error) if isinstance(error, BaseExceptionGroup) else error
    if isinstance(reason, RolloutError):
        return reason
    return PeerError(f"the MCP server at {server.url} cannot be used: {reason}", server=name)


def _first(group: BaseException) -> BaseException:
    """The first exception in the group; one of our own types if there is any."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    leaves = [_first(each) for each in group.exceptions]
    return next((each for each in leaves if isinstance(each, RolloutError)), leaves[0])
