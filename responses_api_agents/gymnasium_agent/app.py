"""The agent for games: `/reset`, then a turn of the model and `/step`, until the game is over."""

import time

from pydantic import ConfigDict, Field

from rollout_kit.responses import (
    function_call_output,
    function_calls,
    input_items,
    message_item,
    without_provider_data,
)
from rollout_kit.serving.agent import Agent, AgentConfig, Turns
from rollout_kit.serving.gymnasium import observation_item
from rollout_kit.serving.service import ServerRef
from rollout_kit.types import JsonObject


class GymnasiumAgentConfig(AgentConfig):
    model_config = ConfigDict(extra="forbid")

    resources_server: ServerRef = Field(
        description="The resources server, with the tools and the verifier."
    )
    model_server: ServerRef = Field(description="The model server.")
    max_steps: int = Field(10, ge=1, description="Most turns of the policy in one game.")


class GymnasiumAgent(Agent):
    Config = GymnasiumAgentConfig

    async def respond(self, params: JsonObject) -> JsonObject:
        turns, output = Turns(self.peers, self.model), []
        asked = input_items(params)
        began = await self._play(turns, "/reset", {"responses_create_params": params})
        if observation := began.get("observation"):
            output.append(observation_item(observation))
        finish_reason = "max_steps"
        response: JsonObject = {}
        for _ in range(self.config.max_steps):
            response = await turns.ask({**params, "input": asked + output})
            turns.num_calls += len(function_calls(response["output"]))
            output = output + (response["output"] or [message_item("")])  # an empty turn counts
            shown = without_provider_data(response)
            body = {"responses_create_params": params, "response": shown}
            step = await self._play(turns, "/step", body)
            output = output + _items(step)
            if step.get("terminated") or step.get("truncated"):
                finish_reason = "terminated" if step.get("terminated") else "truncated"
                break
            if incomplete := response.get("incomplete_details"):
                finish_reason = incomplete.get("reason") or "incomplete"
                break
        return turns.finish(response, output, finish_reason)

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
