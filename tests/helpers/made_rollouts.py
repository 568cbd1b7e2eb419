"""Rollouts with all that formats of other tools can hold: text, tools, parallel calls, reasoning,
images, errors, token ids, and 100 turns."""

import json
from typing import Any

from rollout_kit.formats.foreign import Foreign, build
from rollout_kit.responses import (
    Item,
    function_call_item,
    function_call_output,
    message_item,
    reasoning_item,
)
from rollout_kit.trajectory import ModelCall
from rollout_kit.types import Key

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def turn(number: int, kind: int) -> list[Item]:
    """The items of a turn: text, a thought, or parallel calls with their outputs."""
    names: list[str] = []
    if kind == 0:
        items = [message_item(f"text {number}")]
    elif kind == 1:
        items = [reasoning_item(f"thought {number}"), message_item("")]
    else:
        names = [f"call_{number}_{each}" for each in range(kind)]
        items = [function_call_item("add", '{"a": 1}', name) for name in names]
    items[-1]["prompt_suffix_token_ids" if number else "prompt_token_ids"] = [number, 1]
    items[-1] |= {"generation_token_ids": [2, 3], "generation_log_probs": [-0.5, -1.0]}
    return [*items, *(function_call_output(name, "2") for name in names)]


def make_line(number: int) -> Any:
    """One of many rollouts: the number decides what is in it."""
    num_turns = 100 if number % 50 == 0 else 1 + number % 4
    output: list[Item] = []
    calls = []
    for each in range(num_turns):
        output += turn(each, (number + each) % 4)
        calls.append(
            ModelCall(to=len(output), input=9, output=2, model_s=0.5, start_s=each, finish="stop")
        )
    text = {"type": "input_text", "text": f"question {number}"}
    image = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    foreign = Foreign(
        "agent",
        [
            {"type": "message", "role": "system", "content": "You add."},
            {"type": "message", "role": "user", "content": [text, image][: 1 + number % 2]},
        ],
        output,
        tools=[
            {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": None}
        ],
        params={"temperature": 0.5},
        fields={"expected_answer": "2"},
        model="m",
        calls=calls,
        reward=None if number % 5 == 0 else number % 2,
        scores={"length": number},
        error="too slow" if number % 7 == 0 else None,
        known={"started_at": "2026-11-27T12:00:00.000+00:00"} if number % 3 else {},
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
