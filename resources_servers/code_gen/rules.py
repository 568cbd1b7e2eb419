"""Decide whether a test passed, from the output of the sandbox, by LiveCodeBench's rules.

Output is compared line by line, ignoring white space around the text and each line. Lines are also
equal if they are numbers of equal value (`1.0` and `1`), without rounding. Returned values are
compared as JSON; a single number may differ a little, and be a text.
"""

import json
import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from rollout_kit import JsonObject, SandboxRun

from .rows import Case

PASSED, WRONG, TOO_SLOW, BROKEN = True, -2, -3, -4
"""Results of a test, with LiveCodeBench's numbers."""

SHOWN = 300
"""Characters of inputs and outputs quoted in a verdict."""

ABSOLUTE, RELATIVE = 1e-8, 1e-5
"""Allowed difference of returned numbers; LiveCodeBench has none, NeMo Gym these."""

ENDS = {
    "raised": "Runtime Error",
    "died": "Runtime Error",
    "memory": "Memory Limit Exceeded",
    "output": "Output Limit Exceeded",
    "time": "Time Limit Exceeded",
    "left": "Runtime Error",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of a test; `details` describes the failure in LiveCodeBench's fields."""

    result: bool | int
    details: JsonObject


def judge_run(case: Case, run: SandboxRun) -> Judgement:
    asked = {"inputs": _shorten(case.input_text), "expected": _shorten(case.expected_text)}
    if run.end != "finished":
        code = {"time": TOO_SLOW, "output": WRONG}.get(run.end, BROKEN)
        error = {"error": _shorten(run.error)} if run.error else {}
        return Judgement(
            code, {**error, "error_code": code, "error_message": ENDS[run.end]} | asked
        )
    if case.function is None:
        said = run.stdout.decode("utf-8", "replace")
        problem = describe_difference(said, case.expected_text)
    elif not run.answered:
        said, problem = "", "Wrong Answer: nothing was returned"
    else:
        said = _show(run.value)
        problem = "" if _is_right(run, case.expected) else "Wrong Answer"
    if not problem:
        return Judgement(PASSED, {})
    details = {"output": _shorten(said), "error_code": WRONG, "error_message": problem}
    return Judgement(WRONG, details | asked)


def describe_difference(said: str, expected: str) -> str:
    """Describe the first difference of two outputs; empty if they are equal."""
    lines, wanted = _split_lines(said), _split_lines(expected)
    if len(lines) != len(wanted):
        return "Wrong answer: mismatched output length"
    for number, (one, other) in enumerate(zip(lines, wanted, strict=True)):
        if one != other and not _are_equal_numbers(one, other):
            return f"Wrong answer at output_line_idx={number}: {_shorten(one)} != {_shorten(other)}"
    return ""


def _split_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _are_equal_numbers(one: str, other: str) -> bool:
    try:
        return [Decimal(each) for each in one.split()] == [Decimal(each) for each in other.split()]
    except (InvalidOperation, ValueError):
        return False


def _is_right(run: SandboxRun, expected: Any) -> bool:
    """Judge one value: code that chooses `value` and `number` apart would have two guesses."""
    if isinstance(run.value, dict) and run.number is not None:  # JSON has no word for it
        return _is_close(run.number, expected)
    return _are_equal(run.value, expected) or _is_close(_read_number(run.value), expected)


def _read_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _are_equal(value: Any, expected: Any) -> bool:
    try:
        return value == expected or json.dumps(value) == json.dumps(expected)  # NaN equals NaN
    except RecursionError:
        return False


def _is_close(number: float | None, expected: Any) -> bool:
    """Whether numbers are equal by the default tolerances of numpy's `allclose`."""
    try:
        wanted = float(expected)
    except (TypeError, ValueError, OverflowError):
        return False
    if number is None or not math.isfinite(wanted):
        return number == wanted
    return abs(number - wanted) <= ABSOLUTE + RELATIVE * abs(wanted)


def _show(value: Any) -> str:
    try:
        return str(value)
    except RecursionError:
        return f"a {type(value).__name__} with too many levels to show"


def _shorten(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]}...(truncated) ...{text[-SHOWN // 2 :]}"
