"""Rollouts become trajectories of ATIF 1.8, and are read back: what is special to it."""

from pathlib import Path
from typing import Any

import pytest
from made_rollouts import make_line
from support import read_jsonl, write_jsonl

from rollout_kit.formats.atif import add_step
from rollout_kit.formats.foreign import Damaged, Foreign, build
from rollout_kit.formats.importing import import_runs
from rollout_kit.formats.trajectories import write_trajectory
from rollout_kit.responses import (
    Item,
    function_call_output,
    message_item,
)
from rollout_kit.store.lines import rollout_of
from rollout_kit.trajectory import ModelCall
from rollout_kit.types import Key


def write(lines: list[Any], folder: Path) -> Path:
    path = folder / "trajectories.jsonl"
    write_jsonl(path, [write_trajectory(rollout_of(each)) for each in lines])
    return path


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
        ({"type": "web_search_call"}, "'web_search_call' has no place in this format"),
        (function_call_output("none", "2"), "belongs to no call"),
    ],
)
def test_what_it_cannot_hold_is_named(item: Any, why: str) -> None:
    line = make_line(0)
    line["response"]["output"] = [item]
    line["rollout"].pop("turns")
    with pytest.raises(Damaged, match=why):
        write_trajectory(rollout_of(line))


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
