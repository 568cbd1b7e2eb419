"""Run in a worker process by path: reads, executes and judges what a model says."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import conversation
import single_turn
from decoding import is_calls, read_calls


def work(name: str, *arguments: Any) -> Any:
    return {"play": conversation.play, "judge": judge}[name](*arguments)


def judge(task: dict[str, Any], steps: list[Any]) -> tuple[str, bool]:
    """What is wrong with the steps of a task, empty if nothing is; and whether there are calls."""
    if task["kind"] == "multi_turn":
        problem = conversation.judge(task, steps)
        return problem, problem != "turn 0: no calls"
    try:
        calls = read_calls(steps[0] if steps else [], task["language"])
    except Exception as error:  # parsers raise many types
        calls, problem = None, f"no calls: {type(error).__name__}"
    has_calls = bool(calls) and is_calls(calls)
    if task["kind"] == "irrelevance":
        return ("calls where none is right" if has_calls else ""), has_calls
    if task["kind"] == "relevance":
        return ("" if has_calls else "no calls"), has_calls
    if calls is None or not is_calls(calls):
        return problem if calls is None else "arguments without names", has_calls
    try:
        return single_turn.judge(task, calls), has_calls
    except Exception as error:  # a value of a form that no rule takes
        return f"a value cannot be compared: {type(error).__name__}", has_calls
