"""The tool-calling agent: ask the model and run the tools that it calls, until it calls none.

The loop ends after a turn without calls, at an incomplete response, or after `max_steps` turns.
"""

import asyncio
import time
from typing import Any

from pydantic import ConfigDict, Field

from rollout_kit.errors import PeerError, RolloutError
from rollout_kit.responses import function_call_output, function_calls, input_items
from rollout_kit.serving.agent import Agent, AgentConfig, Turns
from rollout_kit.serving.protocols.mcp_tools import (
    NO_MCP,
    McpServer,
    McpTools,
    check_sdk,
    connected,
)
from rollout_kit.serving.service import ServerRef
from rollout_kit.serving.tools import NO_TOOL, arguments_of, is_callable, refusal_text
from rollout_kit.types import JsonObject


class SimpleAgentConfig(AgentConfig):
    model_config = ConfigDict(extra="forbid")

    resources_server: ServerRef = Field(
        description="The resources server, with the tools and the verifier."
    )
    model_server: ServerRef = Field(description="The model server.")
    max_steps: int | None = Field(
        32, ge=1, description="Most model calls in one rollout; null = 32."
    )
    mcp_servers: dict[str, McpServer] = Field(
        {}, description="MCP servers by name, whose tools are offered too: {name: {url: …}}."
    )
    max_tool_output_chars: int = Field(
        100_000, ge=1, description="Longer tool outputs are cut, and say so."
    )

    @property
    def turn_limit(self) -> int:
        return self.max_steps or 32


class SimpleAgent(Agent):
    Config = SimpleAgentConfig

    def __init__(self, config: SimpleAgentConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._server_tools: list[JsonObject] | None = None
        # reading a field of a configuration takes several times as long as reading an attribute
        self._turn_limit, self._mcp_servers = config.turn_limit, config.mcp_servers
        if self._turn_limit == 1:
            self.one_call = "always"
        elif not self._mcp_servers:
            self.one_call = "without_tools"

    async def start(self) -> None:
        if self.config.mcp_servers:
            check_sdk(self.name)

    async def respond(self, params: JsonObject) -> JsonObject:
        if not self._mcp_servers:
            return await self._respond(params, NO_MCP)
        async with connected(self._mcp_servers) as mcp:
            return await self._respond(params, mcp)

    async def _respond(self, params: JsonObject, mcp: McpTools) -> JsonObject:
        if (offered := self._server_tools) is None:
            offered = self._server_tools = await self._offered_tools()
        request = dict(params)
        own = request.pop("tools", offered)
        names = _callable_names([*offered, *own]) if own else set()
        if mcp.offered:
            own = [tool for tool in own if tool.get("name") not in mcp.offered] + mcp.schemas
            names |= mcp.offered.keys()
        if own:
            request["tools"] = own
        asked = input_items(params)
        output: list[JsonObject] = []
        turns, finish_reason = Turns(self.peers, self.model), "max_steps"
        response: JsonObject = {}
        for _ in range(self._turn_limit):
            response = await turns.ask({**request, "input": asked + output})
            answered = time.perf_counter()
            output += response["output"]
            calls = function_calls(response["output"])
            if incomplete := response.get("incomplete_details"):
                finish_reason = incomplete.get("reason") or "incomplete"
                break
            if not calls:
                finish_reason = "stop"
                break
            said = [self._call(call, names, mcp) for call in calls]
            output += [await said[0]] if len(said) == 1 else await asyncio.gather(*said)
            turns.num_calls += len(calls)
            turns.tool_s += time.perf_counter() - answered
        return turns.finish(response, output, finish_reason)

    async def _offered_tools(self) -> list[JsonObject]:
        """The resources server's tools; none if a foreign server has no /tools."""
        try:
            return await self.peers.call(self.resources, "/tools", None, list)
        except PeerError as error:
            if error.retryable:
                raise
            return []
        except RolloutError:
            return []

    async def _call(self, call: JsonObject, names: set[str], mcp: McpTools) -> JsonObject:
        """One tool call's output item. An error of the tool becomes text for the model."""
        name, call_id = str(call.get("name")), str(call.get("call_id"))
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            return function_call_output(call_id, f"{NO_TOOL} '{name}'; there are: {known}")
        try:
            if name in mcp.offered:
                text = await mcp.call(name, arguments_of(call))
            else:
                text = await self.peers.call(self.resources, f"/{name}", arguments_of(call), str)
        except RolloutError as error:
            if (text := refusal_text(error)) is None:
                raise
        return function_call_output(call_id, self._cut(text))

    def _cut(self, text: str) -> str:
        limit = self.config.max_tool_output_chars
        return (
            text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
        )


def _callable_names(tools: list[JsonObject]) -> set[str]:
    """Names of tools that the policy may call; routes of servers are left out."""
    names = {str(tool.get("name")) for tool in tools if tool.get("type") == "function"}
    return {name for name in names if is_callable(name)}
