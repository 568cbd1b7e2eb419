"""The agent's loop over a scripted model: it calls what it may, and it always ends."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from openai.types.responses import Response
from virtual_time import VirtualTime

from rollout_kit.api.testing import (
    OVERS,
    Over,
    ScriptedModel,
    call_response,
    making,
    mount,
    run_virtual,
)
from rollout_kit.errors import ModelError, PeerError, RolloutError, SessionLost
from rollout_kit.responses import make_response, message_item, reasoning_item
from rollout_kit.serving import registry
from rollout_kit.serving.agent import Turns
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.session import Session, entered
from rollout_kit.trajectory import pack_turns, read_turns
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

SimpleAgent = registry.load("responses_api_agents", "simple_agent")
WIRING = {"resources_server": {"name": "tools"}, "model_server": {"name": "policy_model"}}


class Tools(ResourcesServer):
    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = []
        return {}

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add."""
        await asyncio.sleep(1)
        return a + b

    @tool
    async def fail(self) -> str:
        raise ValueError("cannot")

    @tool
    async def gone(self) -> str:
        raise SessionLost("state is gone")

    @tool
    async def long(self) -> str:
        return "x" * 1000

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(1.0)


def respond(
    model: ScriptedModel,
    params: JsonObject | None = None,
    over: Over = "local",
    run: Callable[[Coroutine[Any, Any, JsonObject]], JsonObject] | None = None,
    session: Session | None = None,
    **settings: Any,
) -> JsonObject:
    async def main() -> JsonObject:
        servers = {
            "policy_model": lambda peers, name: model,
            "tools": making(Tools),
            "agent": making(SimpleAgent, **WIRING, **settings),
        }
        async with mount(servers, over) as peers:
            with entered(session or Session()):
                await peers.call("tools", "/seed_session", {"responses_create_params": {}}, dict)
                return await peers.call(
                    "agent", "/v1/responses", params or {"input": "What is 1+2?"}, dict
                )

    return (run or (run_virtual if over == "local" else asyncio.run))(main())


def outputs(response: JsonObject) -> list[str]:
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]


@pytest.mark.parametrize("over", OVERS)
def test_it_calls_tools_and_answers_with_every_item_and_the_usage_of_all_turns(over: Over) -> None:
    model = ScriptedModel([call_response(("add", '{"a": 1, "b": 2}')), "it is 3"])
    session = Session()
    response = respond(model, over=over, session=session)
    assert [item["type"] for item in response["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]
    assert outputs(response) == ["3"]
    assert response["usage"]["total_tokens"] == 2 + 4
    stats = session.stats
    assert (stats["num_turns"], stats["num_tool_calls"]) == (2, 1)
    assert stats["finish_reason"] == "stop"
    assert over == "local" or stats["tool_s"] >= 1  # the local one's clock is virtual
    Response.model_validate(response)
    history = model.calls[1]["input"]
    assert [item.get("type", item.get("role")) for item in history] == [
        "user",
        "function_call",
        "function_call_output",
    ]


def test_calls_of_one_turn_run_side_by_side_and_answer_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [("add", json.dumps({"a": number, "b": 0})) for number in range(5)]
    model = ScriptedModel([call_response(*calls), "done"])
    session = Session()
    response = respond(model, run=VirtualTime(monkeypatch).run, session=session)
    assert outputs(response) == ["0", "1", "2", "3", "4"]
    assert session.stats["tool_s"] == pytest.approx(1)  # as long as one of them


def test_the_row_s_own_tools_are_offered_as_they_are_else_the_server_s() -> None:
    mine = [{"type": "function", "name": "add", "parameters": {}}]
    model = ScriptedModel(lambda params: "x")
    respond(model, {"input": "?", "tools": mine})
    assert model.calls[0]["tools"] == mine
    respond(model)
    assert {each["name"] for each in model.calls[1]["tools"]} == {"add", "fail", "gone", "long"}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("fail", "{}", "error: ValueError: cannot"),
        ("add", "{", "error: the arguments are not JSON"),
        ("add", "[1]", "error: the arguments must be a JSON object"),
        ("add", '{"a": 1}', "error: bad arguments: b: Field required"),
        ("subtract", "{}", "error: no tool 'subtract'; there are: add"),
        ("verify", "{}", "error: no tool 'verify'"),
        ("../verify", "{}", "error: no tool '../verify'"),
        ("close_session", "{}", "error: no tool 'close_session'"),
    ],
)
def test_what_is_wrong_with_a_call_is_text_for_the_model(
    name: str, arguments: str, said: str
) -> None:
    sneaky = [{"type": "function", "name": each} for each in ("verify", "../verify", "fail", "add")]
    model = ScriptedModel([call_response((name, arguments)), "sorry"])
    [text] = outputs(respond(model, {"input": "?", "tools": sneaky}))
    assert text.startswith(said)


def test_a_lost_session_is_no_answer_for_the_model() -> None:
    with pytest.raises(SessionLost):
        respond(ScriptedModel([call_response(("gone", "{}")), "sorry"]))


def test_it_ends_after_a_turn_of_reasoning_alone() -> None:
    thoughts = make_response("m", [reasoning_item("hm")], None)
    model = ScriptedModel(lambda params: thoughts)
    session = Session()
    respond(model, session=session)
    assert len(model.calls) == 1 and session.stats["finish_reason"] == "stop"


def test_it_ends_at_its_step_limit_and_says_so() -> None:
    model = ScriptedModel(lambda params: call_response(("add", '{"a": 1, "b": 2}')))
    session = Session()
    response = respond(model, session=session, max_steps=3)
    assert len(model.calls) == 3 and session.stats["finish_reason"] == "max_steps"
    Response.model_validate(response)
    endless = ScriptedModel(lambda params: call_response(("add", '{"a": 1, "b": 2}')))
    respond(endless, max_steps=None)
    assert len(endless.calls) == 32


def test_it_ends_at_an_incomplete_response() -> None:
    cut = call_response(("add", '{"a": 1'))
    cut |= {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"}
    model = ScriptedModel(lambda params: cut)
    session = Session()
    respond(model, session=session)
    assert len(model.calls) == 1
    assert session.stats["finish_reason"] == "max_output_tokens"


def test_a_long_tool_output_is_cut_and_says_so() -> None:
    model = ScriptedModel([call_response(("long", "{}")), "ok"])
    [text] = outputs(respond(model, max_tool_output_chars=10))
    assert text == "xxxxxxxxxx… (990 more characters)"


def test_a_model_that_answers_without_output_is_at_fault_by_name() -> None:
    with pytest.raises(PeerError, match="policy_model: answered without an 'output' list"):
        respond(ScriptedModel(lambda params: {"id": "x"}))


def test_a_model_s_refusal_rises_as_it_is() -> None:
    def refuse(params: JsonObject) -> str:
        raise RolloutError("no", status=400)

    with pytest.raises(RolloutError) as caught:
        respond(ScriptedModel(refuse))
    assert caught.value.terminal


@pytest.mark.parametrize("over", OVERS)
def test_each_call_of_the_model_is_told_in_arrays(over: Over) -> None:
    model = ScriptedModel([call_response(("add", '{"a": 1, "b": 2}')), "it is 3"])
    session = Session()
    respond(model, over=over, session=session)
    stats, turns = session.stats, read_turns(session.stats["turns"])
    assert [each.to for each in turns] == [2, 3]
    assert [each.finish for each in turns] == ["tool_calls", "stop"]
    assert [(each.tries, each.chain) for each in turns] == [(1, 0), (1, 0)]
    for name in ("model_s", "tool_s"):
        told = sum(getattr(each, name) for each in turns)
        assert told == pytest.approx(stats[name], abs=2e-3)
    assert "version" not in stats["turns"] and "by" not in stats["turns"]
    assert pack_turns(turns) == stats["turns"]


def test_an_agent_may_end_with_what_it_has_after_a_call_that_failed() -> None:
    def answer(params: JsonObject) -> Any:
        if len(params["input"]) > 1:
            raise ModelError("no", status=400, retryable=False)
        return "first"

    async def main() -> None:
        async with mount({"policy_model": lambda peers, name: ScriptedModel(answer)}) as peers:
            turns = Turns(peers, "policy_model")
            asked = [message_item("hi")]
            first = await turns.ask({"input": asked})
            with pytest.raises(ModelError):
                await turns.ask({"input": asked + first["output"]})
            turns.finish(first, first["output"], "stop")

    session = Session()
    with entered(session):
        run_virtual(main())
    assert session.stats["num_turns"] == 1
    assert [each.to for each in read_turns(session.stats["turns"])] == [1]
