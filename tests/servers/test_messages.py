"""Anthropic's Messages API at model servers: requests, replies and streams."""

import asyncio
import json
from typing import Any

import pytest

from rollout_kit.api.testing import ScriptedModel, call_response, text_response
from rollout_kit.errors import TaskError
from rollout_kit.serving.agent import Agent
from rollout_kit.serving.endpoints.messages import as_message, as_params, message_events
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.serving.transport.wire import EventStream
from rollout_kit.types import JsonObject

TOOL = {"name": "add", "description": "Add.", "input_schema": {"type": "object"}}

CONVERSATION: list[JsonObject] = [
    {"role": "user", "content": "1 + 2?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "I add."},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "3"}],
            },
            {"type": "text", "text": "And then?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
        ],
    },
]


def test_a_request_becomes_create_params() -> None:
    params = as_params(
        {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": CONVERSATION,
            "tools": [TOOL],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "stop_sequences": ["END"],
            "temperature": 0.5,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "a_param_of_tomorrow": 1,
        }
    )
    items = params.pop("input")
    assert params.pop("tools") == [
        {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object"}}
    ]
    assert params == {
        "model": "m",
        "max_output_tokens": 9,
        "stop": ["END"],
        "temperature": 0.5,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "a_param_of_tomorrow": 1,
    }
    assert [item.get("type", item.get("role")) for item in items] == [
        "system",
        "user",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "user",
    ]
    assert items[-2] == {"type": "function_call_output", "call_id": "t1", "output": "3"}
    assert [part["type"] for part in items[-1]["content"]] == ["input_text", "input_image"]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "this is no Messages request"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "no part 'audio'"),
        ({"messages": [], "tools": [{"type": "web_search"}]}, "runs at Anthropic only"),
        ({"messages": [], "tool_choice": {"type": "x"}}, "tool_choice: there is no 'x'"),
        ({"messages": [], "output_config": {"format": {"type": "xml"}}}, "type is 'xml'"),
        ({"messages": [], "output_config": {"format": "json"}}, "this is no Messages request"),
        ({"messages": [], "output_config": "json"}, "this is no Messages request"),
    ],
)
def test_what_cannot_be_expressed_is_refused(request_: JsonObject, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        as_params(request_)


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_a_wanted_json_schema_is_kept(where: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    given = {"output_config": {"format": form}} if where == "output_config" else {where: form}
    params = as_params({"max_tokens": 9, "messages": CONVERSATION, **given})
    assert params["text"] == {"format": {**form, "name": "answer"}} and where not in params


def test_an_image_in_a_result_is_kept() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "x"}
    content = [{"type": "text", "text": "See."}, {"type": "image", "source": source}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    [item] = as_params({"messages": [{"role": "user", "content": [result]}]})["input"]
    assert [part["type"] for part in item["output"]] == ["input_text", "input_image"]


def ask(model: Any, path: str, body: JsonObject) -> Any:
    return asyncio.run(model.answer(path, json.dumps(body).encode()))


def test_a_model_server_answers_with_text_and_calls() -> None:
    script = [text_response("3"), call_response(("add", '{"a": 1}'))]
    model = ScriptedModel(script)
    body = {"model": "m", "max_tokens": 9, "messages": CONVERSATION}
    said, called = ask(model, "/v1/messages", body), ask(model, "/v1/messages", body)
    assert (said["type"], said["role"], said["stop_reason"]) == ("message", "assistant", "end_turn")
    assert said["content"] == [{"type": "text", "text": "3"}]
    assert said["usage"]["output_tokens"] == 1
    [call] = called["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "add", {"a": 1})
    assert called["stop_reason"] == "tool_use"


def test_a_cut_off_response_says_so() -> None:
    response = {**text_response("1 2"), "incomplete_details": {"reason": "max_output_tokens"}}
    assert as_message(response)["stop_reason"] == "max_tokens"


def events_of(stream: bytes) -> list[JsonObject]:
    lines = stream.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_a_stream_holds_the_same_message() -> None:
    message = as_message(call_response(("add", '{"a": 1}')))
    events = events_of(b"".join(message_events(message)))
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert json.loads(events[2]["delta"]["partial_json"]) == {"a": 1}
    assert events[4]["delta"]["stop_reason"] == "tool_use"
    model = ScriptedModel([text_response("3")])
    body = {"max_tokens": 9, "messages": CONVERSATION, "stream": True}
    stream = ask(model, "/v1/messages", body)
    assert isinstance(stream, EventStream)
    assert events_of(stream)[2]["delta"] == {"type": "text_delta", "text": "3"}


class Sayer(Agent):
    async def respond(self, params: JsonObject) -> JsonObject:
        assert "stream" not in params
        return text_response("done")


def test_an_agent_streams_its_whole_response_to_a_client_without_a_session() -> None:
    agent = Sayer(Agent.Config(), Peers({}), "agent")
    stream = ask(agent, "/v1/responses", {"input": "go", "stream": True})
    assert isinstance(stream, EventStream)
    last = events_of(stream)[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"][0]["content"][0]["text"] == "done"
    assert ask(agent, "/v1/responses", {"input": "go", "stream": False})["output"]


def test_an_agent_aggregates_rows_as_nemo_gym_s_collector_asks() -> None:
    agent = Sayer(Agent.Config(), Peers({}), "agent")
    rows = [
        {"_ng_task_index": index // 2, "reward": float(index % 2), "is_right": True, "text": "x"}
        for index in range(4)
    ]
    found = ask(agent, "/aggregate_metrics", {"verify_responses": rows})
    assert found["key_metrics"] == {"mean/reward": 0.5, "mean/is_right": 1.0}
    assert found["agent_metrics"]["std/reward"] == pytest.approx(0.5773502)
    assert [group["num_rollouts"] for group in found["group_level_metrics"]] == [2, 2]
