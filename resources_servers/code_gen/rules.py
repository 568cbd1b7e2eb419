"""When a test is passed: LiveCodeBench's rules, applied to what came out of the sandbox.

Text is equal line by line, white space around the text and each line aside; a line that differs is
still equal when both are numbers of the same values (`1.0` and `1`, never rounded). What is
returned is equal as JSON values are.
"""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from rollout_kit import JsonObject, SandboxRun

from .rows import Case

PASSED, WRONG, TOO_SLOW, BROKEN = True, -2, -3, -4
"""A test's result, in LiveCodeBench's numbers."""

SHOWN = 300
"""Characters of inputs and outputs that a verdict quotes."""

ENDS = {
    "raised": "Runtime Error",
    "died": "Runtime Error",
    "memory": "Memory Limit Exceeded",
    "output": "Output Limit Exceeded",
    "time": "Time Limit Exceeded",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """`details` says what went wrong, in LiveCodeBench's fields; empty where nothing did."""

    result: bool | int
    details: JsonObject


def judged(case: Case, run: SandboxRun) -> Judgement:
    asked = {"inputs": _short(case.input_text), "expected": _short(case.expected_text)}
    if run.end != "finished":
        code = {"time": TOO_SLOW, "output": WRONG}.get(run.end, BROKEN)
        error = {"error": _short(run.error)} if run.error else {}
        return Judgement(
            code, {**error, "error_code": code, "error_message": ENDS[run.end]} | asked
        )
    if case.function is None:
        said = run.stdout.decode("utf-8", "replace")
        problem = difference(said, case.expected_text)
    elif not run.answered:
        said, problem = "", "Wrong Answer: nothing was returned"
    else:
        said = str(run.value)
        problem = "" if _are_equal(run.value, case.expected) else "Wrong Answer"
    if not problem:
        return Judgement(PASSED, {})
    details = {"output": _short(said), "error_code": WRONG, "error_message": problem}
    return Judgement(WRONG, details | asked)


def difference(said: str, expected: str) -> str:
    """Where two outputs differ, in words; empty where they do not."""
    lines, wanted = _lines(said), _lines(expected)
    if len(lines) != len(wanted):
        return "Wrong answer: mismatched output length"
    for number, (one, other) in enumerate(zip(lines, wanted, strict=True)):
        if one != other and not _are_equal_numbers(one, other):
            return f"Wrong answer at output_line_idx={number}: {_short(one)} != {_short(other)}"
    return ""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _are_equal_numbers(one: str, other: str) -> bool:
    try:
        return [Decimal(each) for each in one.split()] == [Decimal(each) for each in other.split()]
    except (InvalidOperation, ValueError):
        return False


def _are_equal(value: Any, expected: Any) -> bool:
    try:
        return bool(value == expected)
    except RecursionError:
        return False


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be sent
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]}...(truncated) ...{text[-SHOWN // 2 :]}"
