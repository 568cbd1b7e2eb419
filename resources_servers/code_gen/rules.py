"""Decide whether a test passed, from the output of the sandbox, by LiveCodeBench's rules.

Output is compared line by line, ignoring white space around the text and each line. Lines are also
equal if they are numbers of equal value (`1.0` and `1`). Returned values are compared as JSON. In
both, floats may differ a little, and integers may not.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rollout_kit import JsonObject, SandboxRun

from .rows import Case

PASSED, WRONG, TOO_SLOW, BROKEN = True, -2, -3, -4
"""Results of a test, with LiveCodeBench's numbers."""

SHOWN = 300
"""Characters of inputs and outputs quoted in a verdict."""

ABSOLUTE, RELATIVE = 1e-8, 1e-5
"""Allowed difference of returned floats; LiveCodeBench has none, NeMo Gym these."""

PRINTED = Decimal("1e-6")
"""Allowed difference of printed floats, absolute or relative, as in NeMo Gym."""

ANSWERS = ("yes", "no")
"""Lines that may be in capitals, as in NeMo Gym."""

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
        if one != other and not _are_alike(one, other):
            return f"Wrong answer at output_line_idx={number}: {_shorten(one)} != {_shorten(other)}"
    return ""


def _split_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _are_alike(line: str, expected: str) -> bool:
    if (answer := expected.lower()) in ANSWERS:
        return line.lower() == answer
    numbers, wanted = line.split(), expected.split()
    try:
        return len(numbers) == len(wanted) and all(map(_is_printed, numbers, wanted))
    except (ArithmeticError, ValueError):  # not numbers, or of exponents without bounds
        return False


def _is_printed(text: str, expected: str) -> bool:
    """Whether two numbers are equal, or nearly so if one is a float.

    For an expected integer the difference is absolute: 1000000006.0 is not 1000000007.
    """
    number, wanted = Decimal(text), Decimal(expected)
    if number == wanted:
        return "_" not in text
    is_float = _is_float(expected)
    if not (is_float or _is_float(text)) or not (number.is_finite() and wanted.is_finite()):
        return False
    return abs(number - wanted) <= PRINTED * (max(abs(wanted), 1) if is_float else 1)


def _is_float(text: str) -> bool:
    return "." in text or "e" in text.lower()


def _is_right(run: SandboxRun, expected: Any) -> bool:
    """Judge one value: code that chooses `value` and `number` apart would have two guesses."""
    if isinstance(run.value, dict) and run.number is not None:  # JSON has no word for it
        return _is_close(run.number, expected)
    try:
        return run.value == expected or _are_close(run.value, expected)
    except RecursionError:
        return False


def _are_close(value: Any, expected: Any) -> bool:
    """Whether values are equal except for small differences of floats, at any depth."""
    if isinstance(expected, list):
        is_list = isinstance(value, list) and len(value) == len(expected)
        return is_list and all(map(_are_close, value, expected))
    if isinstance(expected, dict):
        is_object = isinstance(value, dict) and value.keys() == expected.keys()
        return is_object and all(_are_close(value[name], expected[name]) for name in expected)
    return value == expected or _is_close(value, expected)


def _is_close(value: Any, expected: Any) -> bool:
    """Whether two numbers, at least one of them a float, are equal by the default tolerances of
    numpy's `allclose`. One may be a text. For an expected integer the difference is absolute."""
    pair = (value, expected)
    if not any(isinstance(each, float) for each in pair):
        return False
    if not all(type(each) in (int, float, str) for each in pair):
        return False
    try:
        number, wanted = map(float, pair)
    except (TypeError, ValueError, OverflowError):
        return False
    if not (math.isfinite(number) and math.isfinite(wanted)):
        return number == wanted or (math.isnan(number) and math.isnan(wanted))
    scale = min(abs(wanted), 1.0) if isinstance(expected, int) else abs(wanted)
    return abs(number - wanted) <= ABSOLUTE + RELATIVE * scale


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
