"""Tests that are a program over a function, as in HumanEval and MBPP.

The program and the submitted code run apart, each in a run of the sandbox: first the calls of the
tests are listed, then the submitted code answers them, then the tests run with the answers. A test
that calls with an earlier result takes further rounds.
"""

import ast
from collections.abc import Awaitable, Callable
from pathlib import Path
from textwrap import indent
from typing import Any

from rollout_kit import JsonObject, SandboxRun, TaskError

from .extraction import FENCE, extract_code
from .rows import UnitTests
from .rules import BROKEN, ENDS, PASSED, TOO_SLOW, WRONG, Judgement

SOURCE = Path(__file__).with_name("remote_calls.py").read_text("utf-8")

MAX_ROUNDS = 200
"""Rounds of the submitted code that one verdict may take."""

Run = Callable[[str, str, list[Any]], Awaitable[SandboxRun]]
"""Runs a function of a source with arguments, in the sandbox."""


async def judge_program(run: Run, code: str, tests: UnitTests) -> Judgement:
    """The verdict on submitted code; TaskError if the tests themselves cannot run."""
    name, program, prompt = str(tests.fn_name), str(tests.program), tests.preamble
    preamble = find_preamble(prompt, name)
    whole = f"{preamble}\n{code}" if defines(code, name) else f"{prompt}{_indent(code)}"
    asked: list[Any] = []
    known: list[Any] = []
    for number in range(MAX_ROUNDS):
        listed = await run(SOURCE, "run_tests", [program, preamble, name, known, True])
        calls = _read_calls(listed, is_first=number == 0)
        asked = calls if len(calls) > len(asked) else asked
        answered = await run(SOURCE, "answer_calls", [whole, name, asked])
        if answered.end != "finished" or not _are_answers(answered.value, len(asked)):
            return _describe_end(answered)
        known = [[call, answer] for call, answer in zip(asked, answered.value, strict=True)]
        tested = await run(SOURCE, "run_tests", [program, preamble, name, known, False])
        found = tested.value if tested.end == "finished" else None
        if not isinstance(found, dict):
            return _describe_end(tested)
        if found.get("passed") is True:
            return Judgement(PASSED, {})
        if "failed" in found:
            return Judgement(WRONG, {"error_code": WRONG, "error_message": found["failed"]})
        asked = found["calls"]
    message = f"the tests called with earlier results more than {MAX_ROUNDS} times"
    return Judgement(WRONG, {"error_code": WRONG, "error_message": message})


def _read_calls(run: SandboxRun, *, is_first: bool) -> list[Any]:
    """The calls that the tests' own run lists, none if it cannot; TaskError if they are no
    program."""
    if run.end == "finished" and isinstance(run.value, dict):
        return run.value["calls"]
    if is_first and run.end == "raised":
        raise TaskError(f"unit_tests.program cannot run: {run.error}")
    return []


def find_code(text: str, tests: UnitTests) -> str:
    """The code of a response. Where tests are a program, a text without a fence is code itself."""
    if tests.program is not None and FENCE not in text:
        return text.strip("\n") if text.strip() else ""
    return extract_code(text, tests.fn_name)


def find_preamble(prompt: str, name: str) -> str:
    """The imports and helpers of a prompt: what is before the function's own definition."""
    before, marker, _ = prompt.partition(f"def {name}(")
    return before if marker else ""


def defines(code: str, name: str) -> bool:
    """Whether code defines a function, or gives its name a value, on the first level."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return f"def {name}(" in code
    for node in body:
        if getattr(node, "name", None) == name:
            return True
        if any(isinstance(each, ast.Name) and each.id == name for each in _targets(node)):
            return True
    return False


def _indent(code: str) -> str:
    """Code as the body of a function."""
    return code if code[:1].isspace() else indent(code, "    ")


def _targets(node: ast.stmt) -> list[ast.expr]:
    return list(node.targets) if isinstance(node, ast.Assign) else []


def _are_answers(value: Any, number: int) -> bool:
    """Whether a value has the form of answers to calls; submitted code can write any."""
    if not isinstance(value, list) or len(value) != number:
        return False
    return all(isinstance(each, dict) and _is_answer(each) for each in value)


def _is_answer(each: JsonObject) -> bool:
    if each.keys() == {"raised", "text"}:
        return all(isinstance(text, str) for text in each.values())
    return each.keys() == {"value"} and _is_value(each["value"])


def _is_value(found: Any, depth: int = 0) -> bool:
    if not isinstance(found, list) or not found or depth > 200:
        return False
    kind, *parts = found
    if kind == "dict":
        pairs = parts[0] if len(parts) == 1 and isinstance(parts[0], list) else None
        return pairs is not None and all(
            isinstance(pair, list) and len(pair) == 2 and all(_is_value(x, depth + 1) for x in pair)
            for pair in pairs
        )
    if kind in ("list", "tuple", "set", "frozenset"):
        inner = parts[0] if len(parts) == 1 and isinstance(parts[0], list) else None
        return inner is not None and all(_is_value(each, depth + 1) for each in inner)
    scalars = {"none": 0, "bool": 1, "int": 1, "float": 1, "str": 1, "bytes": 1, "opaque": 1}
    number = {**scalars, "complex": 2}.get(kind)
    return number == len(parts) and all(isinstance(part, str) for part in parts)


def _describe_end(run: SandboxRun) -> Judgement:
    code = TOO_SLOW if run.end == "time" else BROKEN
    message = ENDS.get(run.end, "Runtime Error")
    error = {"error": run.error[:300]} if run.error else {}
    return Judgement(code, {**error, "error_code": code, "error_message": message})
