"""Tools of MCP servers, for the length of one rollout.

Each rollout has a connection of its own to each server, so what a server keeps for a connection is
that rollout's alone. The rollout's session goes along as a header: a resources server of this
package that serves MCP calls the tools in that very session.
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
)
from rollout_kit.serving.tools import SAFE_NAME
from rollout_kit.session import HEADER, LOST_CODE, current_session
from rollout_kit.types import JsonObject

REFUSED = frozenset({-32601, -32602, -32603})
"""JSON-RPC's codes of a server that was asked, and says what is wrong with the call."""

MODES = ("legacy", "auto")
"""Versions of the protocol that have sessions first: what a server keeps belongs to one."""


class McpServer(BaseModel):
    """One of the `mcp_servers` of an agent."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(pattern="^https?://", description="Its endpoint, as http://…/mcp.")
    auth_token: str | None = Field(None, description="Sent as a bearer token.")
    tools: list[str] | None = Field(None, description="Only these of its tools. Default: all.")
    timeout_s: float = Field(60.0, gt=0, description="Time limit of one call.")


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as the policy sees it, and whose it is under which name."""

    schema: JsonObject
    server: str
    name: str


@dataclass(frozen=True, slots=True)
class McpTools:
    """The tools of servers that are connected now. `offered` is by the name that the policy knows;
    one that several servers have is called `<server>_<tool>` but at the first."""

    offered: Mapping[str, McpTool]
    clients: Mapping[str, Any]
    servers: Mapping[str, McpServer]

    @property
    def schemas(self) -> list[JsonObject]:
        return [tool.schema for tool in self.offered.values()]

    async def call(self, name: str, arguments: JsonObject) -> str:
        """What the tool says. ToolError for what it says is wrong, PeerError where it says
        nothing."""
        tool = self.offered[name]
        limit_s = self.servers[tool.server].timeout_s
        try:
            async with asyncio.timeout(limit_s):
                result = await self.clients[tool.server].call_tool(tool.name, arguments)
        except TimeoutError:
            why = f"the MCP tool '{name}' did not answer within {limit_s:g} s"
            raise PeerTimeout(why, server=tool.server) from None
        except Exception as error:  # the SDK has many ways to say it
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
    """ConfigError where the SDK is missing, before anything is asked of the policy."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{name}: mcp_servers needs the MCP SDK ({error}): pip install 'rollout-kit[mcp]'"
        ) from None


@asynccontextmanager
async def connected(servers: Mapping[str, McpServer]) -> AsyncIterator[McpTools]:
    """Each of them for this rollout."""
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
    except BaseExceptionGroup as group:  # the SDK's tasks wrap what is raised among them
        raise _first(group) from group


@asynccontextmanager
async def _client(name: str, server: McpServer) -> AsyncIterator[Any]:
    import httpx2  # the SDK brings it
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
    """The server's tools, however many pages they fill."""
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
    """What was raised first, without the groups around it; of ours, if there is any."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    leaves = [_first(each) for each in group.exceptions]
    return next((each for each in leaves if isinstance(each, RolloutError)), leaves[0])
