import asyncio
import json
from pathlib import Path

import pytest

import rollout_kit as rk
from rollout_kit import function_calls, make_response, message_item
from rollout_kit.api.testing import making, mount
from rollout_kit.responses import function_call_item
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Bfcl = load("resources_servers", "bfcl")
CONFIG = "resources_servers/bfcl/configs/bfcl.yaml"
DATA = Path(__file__).parents[1] / "data" / "example.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text().splitlines()]
ONE, TALK, MORE = ROWS[0], ROWS[5], ROWS[6]


def verify(row, items):
    async def run():
        async with mount({"bfcl": making(Bfcl)}) as peers:
            with entered(Session()):
                await peers.call("bfcl", "/seed_session", row, dict)
                response = make_response("m", items, None)
                return await peers.call("bfcl", "/verify", {**row, "response": response}, dict)

    return asyncio.run(run())


def call(name, arguments):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return function_call_item(name, text, "c")


@pytest.mark.parametrize(
    ("items", "reward"),
    [
        ([call("weather_forecast", {"city": "OSLO.", "days": 3})], 1),
        ([call("weather_forecast", {"city": "Oslo", "days": 3.0})], 0),
        ([call("weather_forecast", {"city": "Oslo"})], 0),
        ([call("weather_forecast", {"days": 3})], 0),
        ([call("weather.forecast", {"city": "Oslo", "days": 3})], 0),
        ([call("weather_forecast", {"city": "Oslo", "days": 3, "x": 1})], 0),
        ([call("weather_forecast", {"city": "Oslo", "days": 3})] * 2, 0),
        ([call("weather_forecast", '{"city": "Oslo", "days": ')], 0),
        ([call("weather_forecast", "[1]")], 0),
        ([call("weather_forecast", "[" * 5_000)], 0),
        ([message_item("[weather.forecast(city='Oslo', days=3)]")], 0),
        ([], 0),
    ],
    ids=range(12),
)
def test_one_turn(items, reward):
    assert verify(ONE, items)["reward"] == reward


@pytest.mark.parametrize("kind", ["irrelevance", "relevance"])
def test_whether_there_is_a_call(kind):
    row = {**ONE, "kind": kind, "functions": [], "possible_answers": []}
    made = verify(row, [call("f", {})])["reward"]
    left_out = verify(row, [message_item("There is no such function.")])["reward"]
    assert (made, left_out) == ((0, 1) if kind == "irrelevance" else (1, 0))
    assert verify(row, [])["reward"] == left_out


PROMPT = {**ONE, "mode": "prompt"}


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("[weather.forecast(city='Oslo', days=3)]", 1),
        ("weather.forecast(days=1 + 2, city='Oslo')", 1),
        ("```\n[weather.forecast(city='Oslo', days=3)]\n```", 1),
        ("weather.forecast('Oslo', 3)", 0),
        ("Sure: [weather.forecast(city='Oslo', days=3)]", 0),
        ("weather.forecast(city='Oslo', days=9 ** 9 ** 9)", 0),
        ("weather.forecast(city='Oslo', days=__import__('os').getpid() + 0)", 0),
        ("weather.forecast(city=" + "(" * 10_000, 0),
        ("weather.forecast(city='Oslo', days=3", 0),
        ("", 0),
    ],
    ids=range(10),
)
def test_calls_in_a_text(text, reward):
    assert verify(PROMPT, [message_item(text)])["reward"] == reward


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_model_that_plays_the_gold_gets_one(row, tmp_path):
    """Live, through the agent: each step comes from the gold answer, in its turn."""
    steps: list[list[dict]] = [[]]
    for item in row["gold_items"]:
        if item.get("role") == "user":
            steps.append([])
        else:
            steps[-1].append(item)
    asked = []

    def model(params):
        step = steps[len(asked)]
        asked.append(params)
        return make_response("gold", step, None)

    async def run():
        async with rk.servers(CONFIG, model=model) as servers:
            return await rk.collect([row], servers=servers, output=tmp_path / "out.jsonl")

    [rollout] = asyncio.run(run())
    assert rollout.reward == 1.0
    assert len(asked) == len(steps)
    if row is MORE:
        names = [{tool["name"] for tool in params["tools"]} for params in asked]
        assert "send_message" not in names[0] and "send_message" in names[-1]


def test_a_conversation_needs_each_turn():
    first = TALK["gold_items"][:1]
    assert verify(TALK, first)["reward"] == 0
    assert verify(TALK, TALK["gold_items"])["reward"] == 1


def test_a_turn_of_too_many_steps_ends_it():
    again = [call("ls", {}), {"type": "function_call_output", "call_id": "c", "output": ""}]
    found = verify(TALK, again * 21 + TALK["gold_items"])
    assert (found["reward"], found["problem"][:20]) == (0, "the conversation did")


def test_contents_that_grow_end_in_an_error_and_not_in_a_hang():
    items = []
    for number in range(40):
        items.append(call("mkdir", {"dir_name": f"p{number}"}))
        for name in ("a", "b"):
            source = f"p{number - 1}" if number else "old"
            items.append(call("cp", {"source": source, "destination": f"p{number}"}))
            items.append(call("mkdir", {"dir_name": name}))
    items.append(call("find", {"path": "."}))
    assert verify(TALK, items)["reward"] == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": "single_turn", "possible_answers": []},
        {"kind": "multi_turn", "ground_truth": [[], [], []]},
        {"involved_classes": ["Shell"]},
        {"mode": "text"},
    ],
)
def test_rows_that_are_none_are_refused(broken):
    with pytest.raises(rk.TaskError):
        verify({**ONE, **broken}, [])


def test_calls_of_a_step_that_cannot_be_read_are_answered():
    async def run():
        async with mount({"bfcl": making(Bfcl)}) as peers:
            with entered(Session()):
                await peers.call("bfcl", "/seed_session", TALK, dict)
                response = make_response("m", [call("cd", "{")], None)
                return await peers.call("bfcl", "/step", {"response": response}, dict)

    step = asyncio.run(run())
    assert step["observation"] == "What do they say?"
    assert step["info"]["tool_outputs"][0]["output"].startswith("Error: the arguments")
    assert not function_calls([])
