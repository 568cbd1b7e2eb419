"""Stored rollouts for the tests of exports, and a way to run a command on them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import write_jsonl

from rollout_kit.responses import (
    function_call_item,
    function_call_output,
    make_response,
    message_item,
    reasoning_item,
)
from rollout_kit.serving.group_verdicts import GroupMemberScore
from rollout_kit.store.groups.members import group_digest, hold
from rollout_kit.store.groups.scores import build_group_line
from rollout_kit.store.kinds import key_of
from rollout_kit.store.scope import Group, group_of

TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": f"Look up the {name}.",
        "parameters": {"type": "object", "properties": {what: {"type": kind}}},
        "strict": True,
    }
    for name, what, kind in (("price", "item", "string"), ("stock", "shelf", "integer"))
]


def line(task: int, index: int, output: str | list[Any], reward: float | None, **more: Any) -> Any:
    """A stored rollout; `cut` is the reason why its response was cut off."""
    items = [message_item(output)] if isinstance(output, str) else output
    asked = [{"role": "user", "content": f"How much is {task}?"}]
    params = {"input": asked, "instructions": "Be brief.", **more.pop("params", {})}
    usage = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    cut = more.pop("cut", None)
    return {
        "kind": "rollout",
        "schema": 1,
        "agent_ref": {"name": "solver"},
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        **({} if reward is None else {"reward": reward}),
        "usage": usage,
        "rollout": {
            "task_id": f"{task:016x}",
            "scope": more.pop("scope", ""),
            "rollout_index": index,
            "model": "m",
            "finish_reason": cut or "stop",
            "num_turns": 1,
            "scores": ["extracted_answer"],
        },
        "responses_create_params": params,
        "expected_answer": f"{task}",
        "extracted_answer": more.pop("answer", f"{task}"),
        **more,
        "response": make_response("m", items, usage, incomplete_reason=cut),
    }


def tool_items(*calls: tuple[str, str], said: str = "", answer: str = "It is 2.") -> list[Any]:
    """A turn that thinks and calls tools in parallel, their outputs, and the answer."""
    made = [
        function_call_item(name, arguments, f"c{at}") for at, (name, arguments) in enumerate(calls)
    ]
    before = [reasoning_item("I look it up."), *([message_item(said)] if said else [])]
    outputs = [function_call_output(f"c{at}", f"{at}") for at in range(len(calls))]
    return [*before, *made, *outputs, message_item(answer)]


def tool_line(task: int, index: int, reward: float, *calls: tuple[str, str], **more: Any) -> Any:
    items = tool_items(*calls, **more)
    return line(task, index, items, reward, params={"tools": TOOLS})


class Place:
    """A folder with a file of rollouts."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def write(self, lines: Sequence[Any], name: str = "rollouts.jsonl") -> Path:
        return write_jsonl(self.folder / name, list(lines))

    def run(self, main: Callable[[list[str]], None], *argv: Any) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, argv)])
        shown = self._capsys.readouterr()
        return int(ended.value.code or 0), shown.out + shown.err


def write_scored(path: Path, lines: list[dict[str, Any]], of_member: Any) -> Path:
    """The lines, and the scores of their groups: `of_member` gives the reward of a line."""
    groups: dict[Group, list[Any]] = {}
    for each in lines:
        key = key_of(each)
        assert key is not None
        groups.setdefault(group_of(key), []).append((key, each))
    scored = []
    for group, members in groups.items():
        digest = group_digest(sum(hold(key, each).digest for key, each in members))
        scores = [(key, GroupMemberScore(of_member(each))) for key, each in members]
        scored.append(build_group_line(group, 0, digest, "v", scores, {}))
    write_jsonl((path.parent / f"{path.stem}.d/groups.jsonl"), scored)
    return write_jsonl(path, lines)
