"""The tools of a resources server, as an agent offers and calls them."""

import asyncio
from collections.abc import Iterable

from ...errors import PeerError, RolloutError
from ...responses import function_call_output
from ...types import JsonObject
from ..protocols.mcp_tools import NO_MCP, McpTools
from ..tools import NO_TOOL, arguments_of, is_callable, refusal_text
from ..transport.peers import Peers


class ServerTools:
    """The tools of the resources server `server`. Outputs longer than `max_chars` are cut."""

    def __init__(self, peers: Peers, server: str, max_chars: int) -> None:
        self._peers, self._server, self._max_chars = peers, server, max_chars
        self._offered: list[JsonObject] | None = None

    async def list_offered(self) -> list[JsonObject]:
        """The schemas; none if a foreign server has no /tools."""
        if self._offered is None:
            self._offered = await self._ask()
        return self._offered

    async def _ask(self) -> list[JsonObject]:
        try:
            return await self._peers.call(self._server, "/tools", None, list)
        except PeerError as error:
            if error.retryable:
                raise
            return []
        except RolloutError:
            return []

    async def call_all(
        self, calls: list[JsonObject], names: set[str], others: McpTools = NO_MCP
    ) -> list[JsonObject]:
        """The output items of the calls of one turn, which run at the same time."""
        if len(calls) == 1:
            return [await self._call(calls[0], names, others)]
        return await asyncio.gather(*(self._call(call, names, others) for call in calls))

    async def _call(self, call: JsonObject, names: set[str], others: McpTools) -> JsonObject:
        """One tool call's output item. An error of the tool becomes text for the model."""
        name, call_id = str(call.get("name")), str(call.get("call_id"))
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            return function_call_output(call_id, f"{NO_TOOL} '{name}'; there are: {known}")
        try:
            if name in others.offered:
                text = await others.call(name, arguments_of(call))
            else:
                text = await self._peers.call(self._server, f"/{name}", arguments_of(call), str)
        except RolloutError as error:
            if (text := refusal_text(error)) is None:
                raise
        return function_call_output(call_id, self._cut(text))

    def _cut(self, text: str) -> str:
        limit = self._max_chars
        return (
            text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
        )


def callable_names(tools: Iterable[JsonObject]) -> set[str]:
    """Names of tools that the policy may call; routes of servers are left out."""
    names = {str(tool.get("name")) for tool in tools if tool.get("type") == "function"}
    return {name for name in names if is_callable(name)}
