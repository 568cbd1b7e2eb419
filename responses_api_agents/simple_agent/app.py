"""The tool-calling agent: ask the model and run the tools that it calls, until it calls none.

The loop ends after a turn without calls, at an incomplete response, or after `max_steps` turns.
With a `user_simulator`, a user answers each turn without calls, and ends the conversation.
"""

import time
from functools import cached_property
from typing import Any

from pydantic import ConfigDict, Field

from rollout_kit.responses import function_calls, input_items
from rollout_kit.serving.agent import Agent, AgentConfig
from rollout_kit.serving.agents.compaction import CompactionConfig, Transcript
from rollout_kit.serving.agents.rollout_bounds import OVER_LIMIT, RolloutBounds
from rollout_kit.serving.agents.tool_calls import ServerTools, callable_names
from rollout_kit.serving.agents.user_simulator import (
    UserSimulator,
    UserSimulatorConfig,
    UserTalk,
)
from rollout_kit.serving.protocols.mcp_tools import (
    NO_MCP,
    McpServer,
    McpTools,
    check_sdk,
    connected,
)
from rollout_kit.serving.service import ServerRef
from rollout_kit.session import current_session
from rollout_kit.types import JsonObject


class SimpleAgentConfig(AgentConfig):
    model_config = ConfigDict(extra="forbid")

    resources_server: ServerRef = Field(
        description="The resources server, with the tools and the verifier."
    )
    model_server: ServerRef = Field(description="The model server.")
    max_steps: int | None = Field(
        32, ge=1, description="Maximum number of model calls in one rollout. null = 32."
    )
    mcp_servers: dict[str, McpServer] = Field(
        {}, description="MCP servers by name, whose tools are offered too: {name: {url: …}}."
    )
    max_tool_output_chars: int = Field(
        100_000, ge=1, description="Longer tool outputs are cut, with a note."
    )
    user_simulator: UserSimulatorConfig | None = Field(
        None,
        description="How the user of the task is simulated, if the resources server has users.",
    )
    compaction: CompactionConfig | None = Field(
        None, description="When and how a long conversation is shortened. Default: never."
    )
    rollout_limits: RolloutBounds | None = Field(
        None,
        description="Limits of one rollout: {calls, tokens, cost_usd, seconds}. When a limit is"
        " reached, the rollout ends as incomplete with the reason rollout_limit, and is"
        " verified.",
    )

    @property
    def turn_limit(self) -> int:
        return self.max_steps or 32


class SimpleAgent(Agent):
    Config = SimpleAgentConfig

    def __init__(self, config: SimpleAgentConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        # reading a field of a configuration takes several times as long as reading an attribute
        self._turn_limit, self._mcp_servers = config.turn_limit, config.mcp_servers
        self._compaction = config.compaction
        if config.user_simulator is None and self._turn_limit == 1:
            self.one_call = "always"
        elif config.user_simulator is None and not self._mcp_servers:
            self.one_call = "without_tools"

    @cached_property
    def _tools(self) -> ServerTools:
        return ServerTools(self.peers, self.resources, self.config.max_tool_output_chars)

    @cached_property
    def _users(self) -> UserSimulator | None:
        simulator = self.config.user_simulator
        return simulator and UserSimulator(simulator, self.peers, self.resources)

    async def start(self) -> None:
        if self.config.mcp_servers:
            check_sdk(self.name)
        if self._users is not None and (path := self.config.user_simulator.replay_fpath):
            from .stored_users import read_stored_users  # imports the reader of stored rollouts

            self._users.stored = read_stored_users(path)

    def describe(self) -> JsonObject:
        simulator = self.config.user_simulator
        played = simulator and simulator.model_server
        more = {"user_model_server": played.name} if played else {}
        return {**super().describe(), "plays_users": simulator is not None, **more}

    async def respond(self, params: JsonObject) -> JsonObject:
        if not self._mcp_servers:
            return await self._respond(params, NO_MCP)
        async with connected(self._mcp_servers) as mcp:
            return await self._respond(params, mcp)

    async def _respond(self, params: JsonObject, mcp: McpTools) -> JsonObject:
        turns, talk = self.begin_turns(), Transcript(self._compaction)
        user = await self._users.join(turns) if self._users is not None else None
        request, names = await self._offer(params, mcp, user)
        if user is not None:
            talk.add([await user.open()])
        finish_reason, asked = "max_steps", input_items(params)
        response: JsonObject = {}
        for _ in range(self._turn_limit):
            if response and turns.find_limit():
                finish_reason = OVER_LIMIT
                break
            response = await talk.ask(turns, request, asked, response)
            answered = time.perf_counter()
            calls = function_calls(response["output"])
            if incomplete := response.get("incomplete_details"):
                finish_reason = incomplete.get("reason") or "incomplete"
                break
            if calls:
                talk.add(await self._tools.call_all(calls, names, mcp))
                turns.num_calls += len(calls)
                turns.tool_s += time.perf_counter() - answered
            elif user is None:
                finish_reason = "stop"
                break
            else:
                talk.add(await user.answer(response["output"], len(talk.output)))
                if user.ended:
                    finish_reason = user.ended
                    break
        found = turns.finish(response, talk.output, finish_reason)
        _report(talk, user)
        return found

    async def _offer(
        self, params: JsonObject, mcp: McpTools, user: UserTalk | None
    ) -> tuple[JsonObject, set[str]]:
        """The request without its items, and the names of the tools that the policy may call."""
        offered = await self._tools.list_offered()
        request = dict(params)
        own = request.pop("tools", offered)
        names = callable_names([*offered, *own]) if own else set()
        if mcp.offered:
            own = [tool for tool in own if tool.get("name") not in mcp.offered] + mcp.schemas
            names |= mcp.offered.keys()
        if user is not None:
            names -= user.tool_names
        if own:
            request["tools"] = own
        return request, names


def _report(talk: Transcript, user: UserTalk | None) -> None:
    """Say in the line who the user was, and what the policy did not read."""
    session = current_session()
    if session is not None and user is not None:
        session.stats["user"] = user.report()
    if session is not None and talk.compactions:
        session.stats["compactions"] = talk.compactions
