"""The agent for games: `/reset`, then a turn of the model and `/step`, until the game is over.

If the game's server has tools, the model may call them before each of its moves.
"""

import time
from functools import cached_property

from pydantic import ConfigDict, Field

from rollout_kit.responses import (
    Item,
    function_call_output,
    function_calls,
    input_items,
    message_item,
    without_provider_data,
)
from rollout_kit.serving.agent import Agent, AgentConfig, Turns
from rollout_kit.serving.agents.rollout_bounds import OVER_LIMIT, RolloutBounds
from rollout_kit.serving.agents.tool_calls import ServerTools, callable_names
from rollout_kit.serving.gymnasium import observation_item
from rollout_kit.serving.service import ServerRef
from rollout_kit.types import JsonObject


class GymnasiumAgentConfig(AgentConfig):
    model_config = ConfigDict(extra="forbid")

    resources_server: ServerRef = Field(
        description="The resources server, with the tools and the verifier."
    )
    model_server: ServerRef = Field(description="The model server.")
    max_steps: int = Field(
        10, ge=1, description="Maximum number of turns of the policy in one game."
    )
    max_tool_output_chars: int = Field(
        100_000, ge=1, description="Longer tool outputs are cut, with a note."
    )
    rollout_limits: RolloutBounds | None = Field(
        None,
        description="Limits of one rollout: {calls, tokens, cost_usd, seconds}. When a limit is"
        " reached, the rollout ends as incomplete with the reason rollout_limit, and is"
        " verified.",
    )


class GymnasiumAgent(Agent):
    Config = GymnasiumAgentConfig

    @cached_property
    def _tools(self) -> ServerTools:
        return ServerTools(self.peers, self.resources, self.config.max_tool_output_chars)

    async def respond(self, params: JsonObject) -> JsonObject:
        turns, output = self.begin_turns(), list[Item]()
        asked, offered = input_items(params), await self._tools.list_offered()
        request = {"tools": offered, **params} if offered else params
        names = callable_names(offered)
        began = await self._play(turns, "/reset", {"responses_create_params": params})
        if observation := began.get("observation"):
            output.append(observation_item(observation))
        finish_reason, move = "max_steps", list[Item]()
        response: JsonObject = {}
        for _ in range(self.config.max_steps):
            if response and turns.find_limit():
                finish_reason = OVER_LIMIT
                break
            response = await turns.ask({**request, "input": asked + output})
            said = response["output"] or [message_item("")]  # an empty turn counts
            calls = function_calls(said)
            turns.num_calls += len(calls)
            output, move = output + said, move + said
            incomplete = response.get("incomplete_details")
            if calls and not incomplete and all(call.get("name") in names for call in calls):
                found = await self._call_all(turns, calls, names)
                output, move = output + found, move + found
                continue
            shown = without_provider_data({**response, "output": move})
            body = {"responses_create_params": params, "response": shown}
            step, move = await self._play(turns, "/step", body), []
            output = output + _items(step)
            if (tools := (step.get("info") or {}).get("tools")) is not None:
                request = {**request, "tools": tools}
            if step.get("terminated") or step.get("truncated"):
                finish_reason = "terminated" if step.get("terminated") else "truncated"
                break
            if incomplete:
                finish_reason = incomplete.get("reason") or "incomplete"
                break
        return turns.finish(response, output, finish_reason)

    async def _call_all(self, turns: Turns, calls: list[Item], names: set[str]) -> list[Item]:
        began = time.perf_counter()
        found = await self._tools.call_all(calls, names)
        turns.tool_s += time.perf_counter() - began
        return found

    async def _play(self, turns: Turns, path: str, body: JsonObject) -> JsonObject:
        began = time.perf_counter()
        answer = await self.peers.call(self.resources, path, body, dict)
        turns.tool_s += time.perf_counter() - began
        return answer


def _items(step: JsonObject) -> list[JsonObject]:
    """The game's answer as items for the model."""
    outputs = (step.get("info") or {}).get("tool_outputs") or []
    items = [function_call_output(str(each["call_id"]), str(each["output"])) for each in outputs]
    return [*items, *([observation_item(step["observation"])] if step.get("observation") else [])]
