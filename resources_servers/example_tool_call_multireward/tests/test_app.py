import asyncio
from pathlib import Path

import orjson
import pytest

from rollout_kit import TaskError, function_call_item, make_response, message_item, reasoning_item
from rollout_kit.api.testing import ScriptedModel, call_response, making, mount
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Server = load("resources_servers", "example_tool_call_multireward")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]
OSLO = ROWS[1]
RIGHT = '{"city": "Oslo", "unit": "celsius"}'


def verdict(task, items, **settings):
    async def run():
        server = Server(Server.Config(**settings), None, "multireward")
        with entered(Session()):
            await server.handle("/seed_session", orjson.dumps(task))
            body = orjson.dumps({**task, "response": make_response("m", items, None)})
            found = await server.handle("/verify", body)
            orjson.dumps(found.model_dump())  # whatever was called can be told
            return found

    return asyncio.run(run())


def call(arguments, name="get_weather"):
    return function_call_item(name, arguments)


@pytest.mark.parametrize(
    ("items", "correctness", "schema_valid", "format"),
    [
        ([call(RIGHT)], 1, 1, 1),
        ([reasoning_item("hm"), call(RIGHT)], 1, 1, 1),
        ([call('{"city": "Oslo", "unit": "celsius", "day": "now"}')], 1, 1, 1),
        ([message_item("One moment."), call(RIGHT)], 1, 1, 0),
        ([call(RIGHT), call(RIGHT)], 1, 1, 0),
        ([call("{}"), call(RIGHT)], 1, 0, 0),  # the schema is that of the first call
        ([call('{"city": "Oslo"}')], 0, 1, 1),
        ([call('{"city": "oslo", "unit": "celsius"}')], 0, 1, 1),
        ([call('{"unit": "celsius"}')], 0, 0, 1),
        ([call(RIGHT, "weather")], 0, 1, 1),  # nothing is known to be required of it
        ([call(RIGHT[:-1])], 0, 0, 1),
        ([call("[1]")], 0, 0, 1),
        ([call("")], 0, 0, 1),
        ([call("[" * 100_000)], 0, 0, 1),
        ([call('{"city": ' * 12_500)], 0, 0, 1),
        ([call("9" * 100_000)], 0, 0, 1),
        ([call('{"city": ' + "9" * 30 + "}")], 0, 1, 1),
        ([call(r'{"city": "\ud800"}')], 0, 0, 1),
        ([message_item("It is cold.")], 0, 0, 0),
        ([], 0, 0, 0),
    ],
)
def test_each_component_is_for_itself(items, correctness, schema_valid, format):
    found = verdict(OSLO, items)
    components = {"correctness": correctness, "schema_valid": schema_valid, "format": format}
    assert found.reward_components == components
    assert {name: getattr(found, name) for name in components} == components
    assert found.reward == pytest.approx(sum(components.values()) / 3)
    assert len(found.predicted_calls) == sum(item["type"] == "function_call" for item in items)


@pytest.mark.parametrize("task", ROWS, ids=[task["uuid"] for task in ROWS])
def test_the_gold_call_of_each_example_scores_full_reward(task):
    assert verdict(task, task["gold_items"]).reward == 1.0


def test_weights_are_what_each_component_adds():
    summed = {"correctness": 1, "schema_valid": 1, "format": 1}
    assert verdict(OSLO, [call(RIGHT)], weights=summed).reward == 3.0
    weights = {"correctness": 0.8, "schema_valid": 0.2, "format": 0}
    assert verdict(OSLO, [call('{"city": "Rome"}')], weights=weights).reward == 0.2


def test_the_result_holds_the_calls_as_they_were_made():
    found = verdict(OSLO, [call('{"city": 1}'), call("{", "fly")])
    assert found.predicted_calls == [
        {"name": "get_weather", "arguments": {"city": 1}},
        {"name": "fly", "arguments": {}},
    ]


@pytest.mark.parametrize("expected", [None, {}, {"arguments": {}}, {"name": "a", "arguments": "b"}])
def test_a_row_that_expects_no_call_is_refused(expected):
    with pytest.raises(TaskError, match="expected_call"):
        verdict({**OSLO, "expected_call": expected}, [])


def test_a_rollout_ends_with_its_call():
    async def main():
        wiring = {"resources_server": {"name": "calls"}, "model_server": {"name": "policy_model"}}
        agent = load("responses_api_agents", "simple_agent")
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(
                [call_response(("get_weather", RIGHT))], peers, name
            ),
            "calls": making(Server),
            "agent": making(agent, max_steps=1, **wiring),
        }
        async with mount(servers) as peers:
            return await peers.call("agent", "/run", OSLO, dict)

    assert asyncio.run(main())["reward"] == 1.0
