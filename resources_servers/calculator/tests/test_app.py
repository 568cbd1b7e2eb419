import asyncio
import json
from pathlib import Path

import pytest

from rollout_kit import RolloutError, ToolError, function_call_item, make_response, message_item
from rollout_kit.serving.registry import load
from rollout_kit.serving.transport.wire import encode
from rollout_kit.session import Session, entered

Server = load("resources_servers", "calculator")
ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/example.jsonl").read_text().splitlines()
]
TASK = {"responses_create_params": {"input": "Add 17 and 25."}, "expected_answer": 42}
CALL = function_call_item("add", '{"a": 17, "b": 25}', "call_1")


def sent(path, body):
    """The server's reply, in a session of its own."""

    async def run():
        server = Server(Server.Config(), None, "calculator")
        with entered(Session()):
            if path != "/seed_session":
                await server.handle("/seed_session", json.dumps(TASK).encode())
            return await server.handle(path, json.dumps(body).encode())

    return asyncio.run(run())


def verdict(items, task=TASK):
    return sent("/verify", {**task, "response": make_response("m", items, None)})


@pytest.mark.parametrize("row", ROWS)
def test_the_tool_says_what_the_gold_items_hold(row):
    call, output, _ = row["gold_items"]
    assert encode(sent("/add", json.loads(call["arguments"]))).decode() == output["output"]
    assert verdict(row["gold_items"], row).reward == 1.0


@pytest.mark.parametrize(
    "text, reward",
    [
        ("42", 1.0),
        ("17 + 25 is \\boxed{42}.", 1.0),
        ("-42", 0.0),
        ("42, not 43", 0.0),
        ("142", 0.0),
        ("forty-two", 0.0),
        ("", 0.0),
        ("9" * 100_000, 0.0),
        (f"{'9' * 100_000} is not 42", 1.0),
    ],
)
def test_the_last_whole_number_counts(text, reward):
    assert verdict([CALL, message_item(text)]).reward == reward


def test_whether_the_tool_was_called_is_a_metric_and_no_condition():
    with_call, without = verdict([CALL, message_item("42")]), verdict([message_item("42")])
    assert (with_call.reward, with_call.tool_was_called) == (1.0, True)
    assert (without.reward, without.tool_was_called) == (1.0, False)


def test_wrong_arguments_are_told_to_the_policy():
    with pytest.raises(ToolError, match="bad arguments: b"):
        sent("/add", {"a": 17})


def test_a_row_without_a_whole_answer_is_refused_before_anything_is_paid_for():
    for wrong in ({}, {"expected_answer": "many"}, {"expected_answer": 1.5}):
        row = {"responses_create_params": TASK["responses_create_params"], **wrong}
        with pytest.raises(RolloutError):
            sent("/seed_session", row)
