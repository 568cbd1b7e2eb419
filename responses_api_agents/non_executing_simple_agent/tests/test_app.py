"""One turn of the model, and no tool is executed."""

import asyncio

from rollout_kit.api.testing import ScriptedModel, call_response, mount, text_response
from rollout_kit.responses import function_calls
from rollout_kit.serving import registry
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject


def test_calls_are_returned_and_not_executed() -> None:
    agent = registry.load("responses_api_agents", "non_executing_simple_agent")
    refs = {
        "resources_server": {"type": "resources_servers", "name": "nobody"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    model = ScriptedModel([call_response(("add", '{"a": 1}'), ("add", "{")), text_response("3")])

    async def ask() -> tuple[JsonObject, Session]:
        makers = {
            "policy_model": lambda peers, name: model,
            "agent": lambda peers, name: agent(agent.Config.model_validate(refs), peers, name),
        }
        async with mount(makers) as peers:
            with entered(Session()) as session:
                body = {"input": "1 + 2?", "tools": [{"type": "function", "name": "add"}]}
                reply = await peers.call("agent", "/v1/responses", body, dict)
            return reply, session

    reply, session = asyncio.run(ask())
    assert len(list(function_calls(reply["output"]))) == 2
    assert len(model.calls) == 1, "the model is not asked again"
    assert (session.stats["num_turns"], session.stats["num_tool_calls"]) == (1, 2)
