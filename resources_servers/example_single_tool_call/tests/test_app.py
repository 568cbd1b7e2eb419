import asyncio
from pathlib import Path

import orjson
import pytest

from rollout_kit import (
    ToolError,
    function_call_item,
    function_call_output,
    make_response,
    message_item,
)
from rollout_kit.serving.registry import load
from rollout_kit.serving.transport.wire import encode
from rollout_kit.session import Session, entered

Server = load("resources_servers", "example_single_tool_call")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]
TASK = {"responses_create_params": {"input": "How is the weather in Oslo?"}}
CALL = function_call_item("get_weather", '{"city": "Oslo"}', "call_1")
REPORT = function_call_output(
    "call_1", '{"city":"Oslo","weather_description":"The weather in Oslo is cold."}'
)
OTHER = function_call_item("get_weather", '{"city": "Rome"}', "call_1")  # ids may repeat
UNKNOWN = function_call_output("call_1", "no report")
ANSWER = message_item("It is cold.")


def verdict(items, task=TASK):
    async def run():
        server = Server(Server.Config(), None, "weather")
        with entered(Session()):
            await server.handle("/seed_session", orjson.dumps(task))
            response = make_response("m", items, None)
            return await server.handle("/verify", orjson.dumps({**task, "response": response}))

    return asyncio.run(run())


def called(arguments):
    async def run():
        server = Server(Server.Config(), None, "weather")
        with entered(Session()):
            await server.handle("/seed_session", orjson.dumps(TASK))
            return encode(await server.handle("/get_weather", arguments)).decode()

    return asyncio.run(run())


@pytest.mark.parametrize("task", ROWS, ids=[str(task["id"]) for task in ROWS])
def test_the_gold_items_of_each_example_score_full_reward_and_are_what_the_tool_says(task):
    call, output, _ = task["gold_items"]
    assert called(call["arguments"].encode()) == output["output"]
    assert verdict(task["gold_items"], task).reward == 1.0


@pytest.mark.parametrize(
    "items, reward, was_called",
    [
        ([CALL, REPORT, ANSWER], 1.0, True),
        ([message_item("Let me look."), CALL, REPORT, ANSWER], 1.0, True),
        ([CALL, OTHER, REPORT, UNKNOWN, ANSWER], 1.0, True),
        ([OTHER, CALL, REPORT, UNKNOWN, ANSWER], 0.0, False),
        ([OTHER, UNKNOWN, CALL, REPORT, ANSWER], 1.0, True),
        ([CALL, REPORT], 0.0, True),
        ([CALL, REPORT, message_item(" ")], 0.0, True),
        ([ANSWER, CALL, REPORT], 0.0, True),
        ([CALL, ANSWER], 0.0, False),
        ([CALL, function_call_output("call_1", "bad arguments"), ANSWER], 0.0, False),
        ([CALL, function_call_output("call_2", REPORT["output"]), ANSWER], 0.0, False),
        ([function_call_item("get_time", "{}", "call_1"), REPORT, ANSWER], 0.0, False),
        ([function_call_item("get_weather", "{", "call_1"), REPORT, ANSWER], 0.0, False),
        ([ANSWER], 0.0, False),
        ([], 0.0, False),
    ],
)
def test_the_reward_asks_for_a_call_its_report_and_an_answer(items, reward, was_called):
    result = verdict(items)
    assert (result.reward, result.tool_was_called) == (reward, was_called)


def test_wrong_arguments_are_told_to_the_policy():
    with pytest.raises(ToolError, match="bad arguments: city"):
        called(b'{"town": "Oslo"}')


def test_the_server_describes_its_tool():
    schema = Server.tools["get_weather"].schema
    assert schema["parameters"]["required"] == ["city"]
    assert schema["description"] == "The current weather in a city."
