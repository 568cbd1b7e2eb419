"""Rollouts become trajectories of ATIF 1.8 and are read back. Harbor's own models check them in a
marked test, in Harbor's environment: `make test-formats`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from peer_pythons import folder_of
from support import read_jsonl, write_jsonl

from rollout_kit.formats.atif import add_step
from rollout_kit.formats.foreign import Damaged, Foreign, build
from rollout_kit.formats.importing import import_runs
from rollout_kit.formats.trajectories import write_trajectory
from rollout_kit.responses import (
    Item,
    function_call_item,
    function_call_output,
    message_item,
    reasoning_item,
)
from rollout_kit.store.lines import rollout_of
from rollout_kit.trajectory import ModelCall
from rollout_kit.types import Key

HARBOR = folder_of("harbor") / "python"

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def turn(number: int, kind: int) -> list[Item]:
    """The items of a turn: text, a thought, or parallel calls with their outputs."""
    if kind == 0:
        items = [message_item(f"text {number}")]
    elif kind == 1:
        items = [reasoning_item(f"thought {number}"), message_item("")]
    else:
        names = [f"call_{number}_{each}" for each in range(kind)]
        items = [function_call_item("add", '{"a": 1}', name) for name in names]
    items[-1]["prompt_suffix_token_ids" if number else "prompt_token_ids"] = [number, 1]
    items[-1] |= {"generation_token_ids": [2, 3], "generation_log_probs": [-0.5, -1.0]}
    if kind > 1:
        items += [function_call_output(name, "2") for name in names]
    return items


def make_line(number: int) -> Any:
    """One of many rollouts: the number decides what is in it."""
    num_turns = 100 if number % 50 == 0 else 1 + number % 4
    output: list[Item] = []
    calls = []
    for each in range(num_turns):
        output += turn(each, (number + each) % 4)
        calls.append(ModelCall(to=len(output), input=9, output=2, model_s=0.5, finish="stop"))
    text = {"type": "input_text", "text": f"question {number}"}
    image = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    foreign = Foreign(
        "agent",
        [
            {"type": "message", "role": "system", "content": "You add."},
            {"type": "message", "role": "user", "content": [text, image][: 1 + number % 2]},
        ],
        output,
        tools=[{"type": "function", "name": "add", "parameters": {"type": "object"}}],
        params={"temperature": 0.5},
        fields={"expected_answer": "2"},
        model="m",
        calls=calls,
        reward=None if number % 5 == 0 else number % 2,
        scores={"length": number},
        error="too slow" if number % 7 == 0 else None,
    )
    key = Key(foreign.task_id, "agent", "", 0)
    return json.loads(json.dumps(build(foreign, "made", key, number, number)))


def said(line: Any) -> list[Any]:
    """The items of a rollout without their ids, a text of one part as text."""
    items = [*line["responses_create_params"]["input"], *line["response"]["output"]]
    found = []
    for item in items:
        own = {name: value for name, value in item.items() if name not in ("id", "status")}
        content = own.get("content")
        if isinstance(content, list) and [each["type"] for each in content] == ["input_text"]:
            own["content"] = content[0]["text"]
        found.append(own)
    return found


def whole_prompts(items: list[Any]) -> list[Any]:
    """The items with whole prompts, as ATIF has them."""
    tokens: list[int] = []
    for item in items:
        if "generation_token_ids" in item:
            tokens += item.pop("prompt_suffix_token_ids", None) or item["prompt_token_ids"]
            item["prompt_token_ids"] = list(tokens)
            tokens += item["generation_token_ids"]
    return items


@pytest.fixture(scope="module")
def lines() -> list[Any]:
    return [make_line(number) for number in range(200)]


def write(lines: list[Any], folder: Path) -> Path:
    path = folder / "trajectories.jsonl"
    write_jsonl(path, [write_trajectory(rollout_of(each)) for each in lines])
    return path


def test_two_hundred_rollouts_come_back_as_they_were(lines: list[Any], tmp_path: Path) -> None:
    import_runs([write(lines, tmp_path)], tmp_path / "back.jsonl")
    back = read_jsonl(tmp_path / "back.jsonl")
    assert len(back) == 200
    for before, after in zip(lines, back, strict=True):
        assert said(after) == whole_prompts(said(before))
        for name in ("reward", "length", "expected_answer"):
            assert after[name] == before[name]
        assert after["rollout"].pop("settings") and before["rollout"].pop("settings")
        assert after["rollout"] == before["rollout"]
        assert after["response"].get("error") == before["response"].get("error")
        assert after["responses_create_params"]["temperature"] == 0.5
        assert after["usage"] == before["usage"]


def test_arguments_are_written_as_the_model_wrote_them(tmp_path: Path) -> None:
    line = make_line(2)
    for item, text in zip(line["response"]["output"], ('{"a":  1}', "{broken"), strict=False):
        item["arguments"] = text
    import_runs([write([line], tmp_path)], tmp_path / "back.jsonl")
    [back] = read_jsonl(tmp_path / "back.jsonl")
    assert [each["arguments"] for each in back["response"]["output"][:2]] == [
        '{"a":  1}',
        "{broken",
    ]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"type": "web_search_call"}, "'web_search_call' has no place in ATIF"),
        (function_call_output("none", "2"), "belongs to no call"),
    ],
)
def test_what_it_cannot_hold_is_named(item: Any, why: str) -> None:
    line = make_line(0)
    line["response"]["output"] = [item]
    line["rollout"].pop("turns")
    with pytest.raises(Damaged, match=why):
        write_trajectory(rollout_of(line))


@pytest.mark.formats
def test_harbor_s_models_accept_them(lines: list[Any], tmp_path: Path) -> None:
    assert HARBOR.exists(), "make test-formats installs it"
    code = (
        "import sys; from harbor.models.trajectories import Trajectory\n"
        "print(sum(1 for line in open(sys.argv[1]) if Trajectory.model_validate_json(line)))"
    )
    words = [HARBOR, "-c", code, write(lines, tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "200\n", done.stderr


def test_the_tools_of_a_simulated_user_come_back_and_its_tokens_are_nobody_else_s() -> None:
    calls = [{"name": "pay", "arguments": "{}", "output": "3 euros"}]
    guest = {"type": "message", "role": "user", "content": "Done.", "user_calls": calls}
    made = [
        ModelCall(to=1, input=9, output=2, finish="stop", by="policy", model="m"),
        ModelCall(to=1, input=70, output=80, finish="tool_calls", by="user", model="u"),
        ModelCall(to=2, input=71, output=81, finish="stop", by="user", model="u"),
    ]
    asked = [{"type": "message", "role": "system", "content": "Sell tea."}]
    foreign = Foreign("agent", asked, [message_item("Please pay."), guest], model="m", calls=made)
    line = build(foreign, "made", Key(foreign.task_id, "agent", "", 0), 0, 0)
    _, clerk, paid = write_trajectory(rollout_of(line))["steps"]
    assert (clerk["metrics"]["prompt_tokens"], clerk["metrics"]["completion_tokens"]) == (9, 2)
    items: list[Item] = []
    add_step(paid, items)
    assert items[-1]["user_calls"] == calls
