"""The agent that asks the model once and executes no tool: the verifier judges the calls."""

from pydantic import ConfigDict, Field

from rollout_kit.responses import function_calls
from rollout_kit.serving.agent import Agent, AgentConfig, Turns
from rollout_kit.serving.service import ServerRef
from rollout_kit.types import JsonObject


class NonExecutingSimpleAgentConfig(AgentConfig):
    model_config = ConfigDict(extra="forbid")

    resources_server: ServerRef = Field(
        description="The resources server, with the tools and the verifier."
    )
    model_server: ServerRef = Field(description="The model server.")


class NonExecutingSimpleAgent(Agent):
    Config = NonExecutingSimpleAgentConfig
    one_call = "always"

    async def respond(self, params: JsonObject) -> JsonObject:
        turns = Turns(self.peers, self.model)
        response = await turns.ask(params)
        turns.num_calls = len(list(function_calls(response["output"])))
        incomplete = response.get("incomplete_details") or {}
        return turns.finish(response, response["output"], incomplete.get("reason") or "stop")
