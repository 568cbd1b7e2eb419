"""Two tools in sequence; rows, tools, result fields and rewards are NeMo Gym's."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollout_kit import (
    TaskError,
    ToolError,
    function_call_item,
    function_calls,
    make_response,
    message_item,
)
from rollout_kit.api.testing import OVERS, Over, making, mount
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

Server = load("resources_servers", "example_multi_step")
ROWS = [
    orjson.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "example.jsonl").read_bytes().splitlines()
]
TASK = {
    "id": 44,
    "responses_create_params": {"input": "How does one stay awake?"},
    "expected_synonyms": ["Awake", "Alert"],
    "expected_synonym_values": [489, 504],
    "minefield_label": "Alive",
    "minefield_label_value": 497,
}
FOUND = (
    "reward",
    "parsed_synonym_values",
    "accuracy",
    "set_overlap",
    "original_term_minefield_hit",
    "order_instruction_following_failure",
)


def verdict(items: list[Any], task: Any = TASK, over: Over = "local") -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with mount({"steps": making(Server)}, over) as peers:
            with entered(Session()):
                await peers.call("steps", "/seed_session", task, dict)
                request = {**task, "response": make_response("m", items, None)}
                return await peers.call("steps", "/verify", request, dict)

    return asyncio.run(main())


def said(name: str, arguments: Any, over: Over = "local") -> str:
    async def main() -> str:
        async with mount({"steps": making(Server)}, over) as peers:
            with entered(Session()):
                await peers.call("steps", "/seed_session", TASK, dict)
                return await peers.call("steps", f"/{name}", arguments, str)

    return asyncio.run(main())


def handed_in(arguments: str) -> Any:
    return function_call_item("extract_synonym_values", arguments)


@pytest.mark.parametrize("over", OVERS)
def test_the_tools_answer_byte_for_byte_as_the_rows_tools_describe(over: Over) -> None:
    assert said("get_synonym_value", {"synonym": "Arid"}, over) == '{"synonym_value":384}'
    assert said("extract_synonym_values", {"synonym_values": [384]}, over) == '{"success":true}'


def test_wrong_arguments_are_told_to_the_policy() -> None:
    with pytest.raises(ToolError, match="bad arguments: synonym: Field required"):
        said("get_synonym_value", {})
    with pytest.raises(ToolError, match="bad arguments: synonym_values"):
        said("extract_synonym_values", {"synonym_values": "not a list"})


@pytest.mark.parametrize("task", ROWS, ids=[str(task["id"]) for task in ROWS])
def test_the_gold_items_of_each_example_are_what_the_tools_say(task: Any) -> None:
    outputs = [each for each in task["gold_items"] if each["type"] == "function_call_output"]
    calls = function_calls(task["gold_items"])
    assert len(calls) == len(outputs) == len(task["expected_synonyms"]) + 1
    for call, output in zip(calls, outputs, strict=True):
        assert said(call["name"], orjson.loads(call["arguments"])) == output["output"]
    assert verdict(task["gold_items"], task)["reward"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('{"synonym_values": [489, 504]}', (1.0, [489, 504], True, 1.0, False, False)),
        ('{"synonym_values": [504, 489]}', (0.0, [504, 489], False, 1.0, False, True)),
        ('{"synonym_values": [489]}', (0.0, [489], False, 0.5, False, False)),
        ('{"synonym_values": [489, 504, 1]}', (0.0, [489, 504, 1], False, 1.0, False, True)),
        ('{"synonym_values": [497]}', (0.0, [497], False, 0.0, True, False)),
        ('{"synonym_values": [497, 489, 504]}', (0.0, [497, 489, 504], False, 1.0, True, True)),
        ('{"synonym_values": [489.0, 504.0]}', (1.0, [489, 504], True, 1.0, False, False)),
        ('{"synonym_values": ["489", "504"]}', (0.0, [], False, 0.0, False, False)),
        ('{"synonym_values": [489.5, 504]}', (0.0, [], False, 0.0, False, False)),
        ('{"synonym_values": [[489], 504]}', (0.0, [], False, 0.0, False, False)),
        ('{"synonym_values": "489"}', (0.0, [], False, 0.0, False, False)),
        ('{"synonym_values": []}', (0.0, [], False, 0.0, False, False)),
        ('{"values": [489, 504]}', (0.0, [], False, 0.0, False, False)),
        ("[489, 504]", (0.0, [], False, 0.0, False, False)),
        ("{", (0.0, [], False, 0.0, False, False)),
        ("", (0.0, [], False, 0.0, False, False)),
    ],
)
def test_what_was_handed_in_is_compared_with_what_was_expected(
    arguments: str, found: tuple[Any, ...]
) -> None:
    result = verdict([handed_in(arguments)])
    assert tuple(result[name] for name in FOUND) == found


@pytest.mark.parametrize("over", OVERS)
def test_only_the_last_hand_in_counts_and_the_row_comes_back(over: Over) -> None:
    items = [
        handed_in('{"synonym_values": [860]}'),
        message_item("[489, 504]"),
        handed_in('{"synonym_values": [489, 504]}'),
        function_call_item("get_synonym_value", '{"synonym": "Awake"}'),
    ]
    result = verdict(items, over=over)
    assert result["reward"] == 1.0 and result["parsed_synonym_values"] == [489, 504]
    assert {name: result[name] for name in TASK} == TASK
    assert verdict(items[:2], over=over)["reward"] == 0.0


@pytest.mark.parametrize("over", OVERS)
def test_a_row_without_a_value_to_expect_is_refused(over: Over) -> None:
    for values in ([], ["x"], None):
        with pytest.raises(TaskError, match="expected_synonym_values"):
            verdict([], {**TASK, "expected_synonym_values": values}, over)
