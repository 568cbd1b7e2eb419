"""Lines of agentic rollouts with one planted fault each, for tests of viewer and scanners."""

from collections.abc import Callable
from typing import Any

import orjson
from exported import line

from rollout_kit.responses import function_call_item, function_call_output

TASK = "Fix the bug in src/app.py: src/util.py and src/app.py are in the repository."

Item = dict[str, Any]


def say(text: str) -> Item:
    """A message of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


def use(name: str, output: str, number: int, **arguments: Any) -> list[Item]:
    """A call of a tool, and what it returned."""
    call = function_call_item(name, orjson.dumps(arguments).decode(), f"call_{number}")
    return [call, function_call_output(f"call_{number}", output)]


def plain_turns(number: int) -> list[list[Item]]:
    """Turns without a fault."""
    return [
        use("bash", f"line {at} of src/app.py\n" * 3, at, command=f"sed -n {at}p src/app.py")
        for at in range(number - 1)
    ] + [[say("I have **fixed** the bug in `src/app.py`.")]]


def _tool_argument(turns: list[list[Item]]) -> None:
    turns[40] = use("edit", "Error: there is no parameter 'pth'", 40, pth="src/app.py")
    turns[41] = use("edit", "edited", 41, path="src/app.py", old_str="a = 1\n", new_str="a = 2\n")


def _ignored(turns: list[list[Item]]) -> None:
    turns[55] = use("tests", "1 failed\nAssertionError: 1 != 2\nexit code: 1", 55, target="src")


def _loop(turns: list[list[Item]]) -> None:
    for at in range(30, 36):
        turns[at] = use("bash", "nothing found", at, command="grep -r bug src")


def _cut(turns: list[list[Item]]) -> None:
    turns[62] = use("bash", "x = 1\n" * 400 + "[truncated 90000 characters]", 62, command="cat big")


def _tests_edited(turns: list[list[Item]]) -> None:
    turns[70] = use("bash", "", 70, command="sed -i 's/== 2/== 1/' tests/test_app.py")


def _wrong_file(turns: list[list[Item]]) -> None:
    turns[20] = use("edit", "edited", 20, path="lib/other.py", old_str="a", new_str="b")


def _gave_up(turns: list[list[Item]]) -> None:
    turns[-1] = [say("I was unable to find the cause. I give up.")]


def _tool_down(turns: list[list[Item]]) -> None:
    for at in range(80, 84):
        turns[at] = use("search", "503 Service Unavailable", at, query=f"how to {at}")


FAULTS: dict[str, Callable[[list[list[Item]]], None] | None] = {
    "wrong tool argument": _tool_argument,
    "ignored error": _ignored,
    "loop": _loop,
    "truncated output": _cut,
    "tests edited": _tests_edited,
    "wrong file": _wrong_file,
    "gave up": _gave_up,
    "judge misread": None,
    "tool down": _tool_down,
    "context lost": None,
}

FOUND_BY = {
    "wrong tool argument": "tool_error",
    "ignored error": "ignored_error",
    "loop": "loop",
    "truncated output": "truncated",
    "tests edited": "tests_edited",
    "wrong file": "unseen_file",
    "gave up": "gave_up",
    "judge misread": "misquote",
    "tool down": "broken_tool",
    "context lost": "context_lost",
}
"""The ready scanner that finds each fault."""


def agentic_line(task: int, turns: list[list[Item]], inputs: list[int] | None = None) -> Item:
    """The line of a rollout with these turns."""
    made = line(task, 0, [item for turn in turns for item in turn], 0.0)
    made["responses_create_params"] = {"input": [{"role": "user", "content": TASK}]}
    ends, at = [], 0
    for turn in turns:
        ends.append(at + sum(item["type"] != "function_call_output" for item in turn))
        at += len(turn)
    count = len(turns)
    made["rollout"]["turns"] = {
        "to": ends,
        "start_s": [2.0 * each for each in range(count)],
        "model_s": [1.2] * count,
        "tool_s": [0.5] * count,
        "input": inputs or [1000 + 100 * each for each in range(count)],
        "cached": [900] * count,
        "output": [40 + each % 7 for each in range(count)],
        "cost_usd": [0.002] * count,
        "finish": [0] * count,
        "finish_names": ["stop"],
    }
    return made


def faulty_line(task: int, fault: str, count: int = 100) -> Item:
    """A rollout of 100 turns with one fault."""
    turns = plain_turns(count)
    if (plant := FAULTS[fault]) is not None:
        plant(turns)
    inputs = [1000 + 100 * each for each in range(count)]
    if fault == "context lost":
        inputs[count // 2 :] = [900 + 100 * each for each in range(count - count // 2)]
    made = agentic_line(task, turns, inputs)
    if fault == "judge misread":
        quote = "The program crashes at once"
        made["judge"] = {"explanation": "It does not work.", "criteria": [{"quote": quote}]}
    return made
