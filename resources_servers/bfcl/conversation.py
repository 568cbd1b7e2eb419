"""A task of several turns: its programs, whose turn it is, and the verdict; runs in a worker.

A step is what the model says between two messages: calls, or a text. A step with calls is executed,
and the turn of the user goes on. A step without calls ends it. The verdict compares the programs
with those in which the right calls were executed, after each turn.
"""

import inspect
import json
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from decoding import Call, NestedCall, is_calls, read_calls
from worlds import CLASSES, read_long_texts

MAX_STEPS = 20
"""Steps with calls in one turn; one more ends the conversation."""

Task = dict[str, Any]


class Programs:
    """The programs of a task."""

    def __init__(self, task: Task) -> None:
        long = read_long_texts() if task["long_context"] else None
        config = task["initial_config"]
        self._worlds = {
            name: CLASSES[name](config.get(name, {}), long) for name in task["involved_classes"]
        }
        self._tools: dict[str, Any] = {}
        for world in self._worlds.values():
            methods = inspect.getmembers(world, inspect.ismethod)
            self._tools |= {name: tool for name, tool in methods if not name.startswith("_")}

    def execute(self, calls: Iterable[Call]) -> list[str]:
        """The result of each call as a text, an error too."""
        found = []
        for call in calls:
            for name, arguments in call.items():
                try:
                    found.append(_write(self._run(name, arguments)))
                except Exception as error:  # whatever a tool raises is a result
                    found.append(f"Error during execution: {error}")
        return found

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        if name not in self._tools:
            raise NameError(f"name '{name}' is not defined")
        own = {
            key: self._run(*next(iter(value.items()))) if type(value) is NestedCall else value
            for key, value in arguments.items()
        }
        return self._tools[name](**deepcopy(own))  # a tool keeps lists, and changes them

    def find_difference(self, other: "Programs") -> str:
        """The first part of the state that differs; empty if none does."""
        for name, world in self._worlds.items():
            mine, theirs = world._state(), other._worlds[name]._state()
            for key, value in theirs.items():
                if mine.get(key) != value:
                    return f"{name}.{key}"
        return ""


def _write(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            pass
    return str(result)


class Conversation:
    """A task in progress."""

    def __init__(self, task: Task) -> None:
        self.programs = Programs(task)
        self.turn, self.is_cut = 0, False
        self.turns: list[list[list[Call]]] = [[]]
        """Turn → its steps with calls."""
        self._num_turns = task["num_turns"]

    @property
    def is_over(self) -> bool:
        return self.is_cut or self.turn >= self._num_turns

    def take(self, step: Any) -> list[tuple[Call, str]] | None:
        """Go on with a step: its calls and their results; None if it has none, which ends the
        turn."""
        calls = _decode(step)
        if not calls:
            self.turn += 1
            if not self.is_over:
                self.turns.append([])
            return None
        self.turns[-1].append(calls)
        results = self.programs.execute(calls)
        self.is_cut = len(self.turns[-1]) > MAX_STEPS
        return [*zip(calls, results, strict=True)]


def _decode(step: Any) -> list[Call]:
    try:
        calls = read_calls(step)
    except Exception:  # parsers raise many types
        return []
    return calls if is_calls(calls) else []


def play(task: Task, steps: list[Any]) -> dict[str, Any]:
    """Where a conversation is after these steps, with what the last one did."""
    talk, done = Conversation(task), None
    for step in steps:
        done = talk.take(step)
    shown = [
        {"role": "tool", "name": write_call(call), "content": result} for call, result in done or ()
    ]
    return {
        "results": [result for _, result in done or ()],
        "shown": repr(shown) if done is not None else None,
        "turn": talk.turn,
        "is_over": talk.is_over,
        "is_cut": talk.is_cut,
    }


def write_call(call: Call) -> str:
    [(name, arguments)] = call.items()
    parts = (
        f"{key}={write_call(value) if type(value) is NestedCall else repr(value)}"
        for key, value in arguments.items()
    )
    return f"{name}({', '.join(parts)})"


def judge(task: Task, steps: list[Any]) -> str:
    """What is wrong with a conversation; empty if nothing is."""
    talk = Conversation(task)
    for step in steps:
        if not talk.is_over:
            talk.take(step)
    right: list[list[Call]] = task["ground_truth"]
    if not talk.is_over or len(talk.turns) != len(right):
        return "the conversation did not come to its end"
    own, wanted, said = Programs(task), Programs(task), list[str]()
    for number, (turn, calls) in enumerate(zip(talk.turns, right, strict=True)):
        for step in turn:
            said += own.execute(step)
        results = wanted.execute(calls)
        if not calls:
            continue
        if not turn:
            return f"turn {number}: no calls"
        if difference := own.find_difference(wanted):
            return f"turn {number}: {difference} differs"
        left = list(said)
        for result in results:
            if result not in left:
                return f"turn {number}: a result is missing"
            left.remove(result)
    return ""
