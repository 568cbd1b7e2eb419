"""The calls in an answer. Texts are parsed and never executed; runs in a worker process.

A call is `{name: arguments}`. A text is a list of calls in Python, Java or JavaScript. ValueError,
SyntaxError or the like if an answer has not that form.
"""

import ast
import json
import operator
import re
from typing import Any

MAX_TEXT = 100_000
"""Longer texts are no calls."""

MAX_POWER = 10_000
"""Bits of the largest power that is computed."""

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}

Call = dict[str, Any]


class NestedCall(dict[str, Any]):
    """A call in the place of an argument."""


def read_calls(step: Any, language: str = "python") -> list[Call]:
    """The calls of one step: a list of function calls with JSON, or a text."""
    if isinstance(step, str):
        return read_text(step, language)
    return [{call["name"]: json.loads(call["arguments"])} for call in step]


def read_text(text: str, language: str = "python") -> list[Call]:
    """The calls that a text is."""
    if len(text) > MAX_TEXT:
        raise ValueError("the answer is too long")
    text = text.strip("`\n ")
    text = text if text.startswith("[") else f"[{text}"
    text = text if text.endswith("]") else f"{text}]"
    if language != "python":
        return [_read_foreign(text[1:-1])]
    parsed = ast.parse(text.strip().strip("'"), mode="eval").body
    found = [parsed] if isinstance(parsed, ast.Call) else getattr(parsed, "elts", None)
    if found is None or not all(isinstance(each, ast.Call) for each in found):
        raise ValueError("the answer is no list of calls")
    return [dict(_read_call(each)) for each in found]


def is_calls(found: list[Call]) -> bool:
    """Whether each call has arguments by name."""
    return all(isinstance(arguments, dict) for call in found for arguments in call.values())


def _read_call(node: ast.Call) -> NestedCall:
    names, inner = [], node.func
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        names.append(inner.id)
    arguments = {each.arg: _read_value(each.value) for each in node.keywords}
    return NestedCall({".".join(reversed(names)): arguments})


def _read_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return "..." if node.value is ... else node.value
        case ast.UnaryOp(operand=ast.Constant()):
            return -node.operand.value
        case ast.List():
            return [_read_value(each) for each in node.elts]
        case ast.Tuple():
            return tuple(_read_value(each) for each in node.elts)
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return {_read_value(key): _read_value(value) for key, value in pairs if key is not None}
        case ast.Name():
            return node.id
        case ast.Call():
            return _read_call(node) if node.keywords else ast.unparse(node)
        case ast.Subscript():
            return f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]"
        case ast.BinOp():
            return _compute(node)
    raise ValueError(f"no value: {type(node).__name__}")


def _compute(node: ast.expr) -> Any:
    """The value of a sum, product or the like of numbers and texts."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _compute(node.left), _compute(node.right)
        if isinstance(node.op, ast.Pow | ast.Mult):
            _check_size(node.op, left, right)
        return OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _compute(node.operand)
        return -value if isinstance(node.op, ast.USub) else +value
    return ast.literal_eval(node)


def _check_size(op: ast.operator, left: Any, right: Any) -> None:
    numbers = [each for each in (left, right) if isinstance(each, int | float)]
    if isinstance(op, ast.Pow) and len(numbers) == 2 and isinstance(left, int):
        if left.bit_length() * abs(right) > MAX_POWER:
            raise ValueError("the number is too large")
    elif len(numbers) == 1 and abs(numbers[0]) > MAX_POWER:
        raise ValueError("the text is too long")


def _read_foreign(text: str) -> Call:
    """A call of Java or JavaScript, with values as they are written. Texts have no quotes."""
    found = re.fullmatch(r"\s*(?:new\s+)?([\w.$]+)\s*\((.*)\)\s*;?\s*", text, re.DOTALL)
    if found is None:
        raise ValueError("the answer is no call")
    arguments: Call = {}
    for part in _split(found[2]):
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"\s*[\w$]+\s*", name) or value.startswith("="):
            raise ValueError(f"no argument: {part!r:.80}")
        value = value.strip()
        is_text = len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]
        if name.strip() in arguments:
            raise ValueError(f"{name.strip()} occurs twice")
        arguments[name.strip()] = value[1:-1] if is_text else value
    return {found[1]: arguments}


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets and no text; ValueError if those do not
    end."""
    parts, start, depth, quote, place = list[str](), 0, 0, "", 0
    while place < len(text):
        each = text[place]
        if quote:
            place += each == "\\"
            quote = "" if each == quote else quote
        elif each in "\"'`":
            quote = each
        elif each in "([{":
            depth += 1
        elif each in ")]}":
            depth -= 1
        elif each == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
        if depth < 0:
            raise ValueError("a bracket is closed that was not opened")
        place += 1
    if depth or quote:
        raise ValueError("a bracket or a text does not end")
    return [*parts, text[start:]] if text[start:].strip() or parts else []
