"""Scorers of reasoning-gym that evaluate texts; the task of a sandbox of `app.py`, and nothing else
imports it.

These scorers pass an answer, or a text of the row, to `eval` or to sympy's parser. Here each such
text is evaluated in a fork (`evaluate_apart`): the scorer gets its value, as numbers or as an
expression that is built again from the names of sympy's classes. In the fork, too, only literals
and mathematics are evaluated: other Python has no value, so it cannot decide one.
"""

import ast
import math
import operator
import sys
import warnings
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

from rollout_kit.serving.sandbox.apart import Unreadable, evaluate_apart

warnings.filterwarnings("ignore", category=SyntaxWarning)

# cellpylib generates tasks, of which none are made here, and imports all of matplotlib
sys.modules["cellpylib"] = ModuleType("cellpylib")

import reasoning_gym  # noqa: E402
import sympy  # noqa: E402
from reasoning_gym.algorithmic import (  # noqa: E402
    binary_matrix,
    number_sorting,
    spiral_matrix,
    string_insertion,
)
from reasoning_gym.arithmetic import bitwise_arithmetic  # noqa: E402
from reasoning_gym.games import countdown, n_queens, puzzle24  # noqa: E402
from sympy.parsing.sympy_parser import (  # noqa: E402
    eval_expr,
    standard_transformations,
    stringify_expr,
)

PERMITTED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop),
    *(ast.Load, ast.Tuple, ast.List),
)
"""Syntax of mathematics besides calls, names and numbers: no attribute, no lambda, no loop."""

NAMED_BY_TEXT = frozenset({"Symbol", "Function", "Integer", "Float", "Rational"})
"""What sympy's parser writes with a text as argument."""

BUILTINS = {each.__name__: each for each in (abs, divmod, max, min, pow, round, sum)}

MAX_BITS = 4096
"""Larger integers are no results of bitwise arithmetic."""

OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


_evaluate: Callable[[Callable[[], Any]], Any] = evaluate_apart


def score(row: dict[str, Any], answer: str) -> float:
    """Return the score from 0 to 1, 0 for an unreadable answer."""
    try:
        found = float(SCORERS[row["metadata"]["source_dataset"]](answer, row))
    except Exception:  # scorers raise exceptions of any type on unusual input
        return 0.0
    return min(max(found, 0.0), 1.0) if math.isfinite(found) else 0.0


def list_families() -> list[str]:
    return sorted(SCORERS)


def evaluate_literal(text: str) -> Any:
    """In place of `eval`: a literal of Python."""
    return _evaluate(lambda: ast.literal_eval(text))


def evaluate_bits(text: str) -> int:
    """In place of `eval`: integers with operators, as bitwise arithmetic has them."""
    value = _evaluate(lambda: hex(_calculate(ast.parse(text.strip(), mode="eval").body)))
    return int(value, 16)


def _calculate(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp):
        value = _calculate(node.operand)
        return {ast.USub: operator.neg, ast.Invert: operator.invert}[type(node.op)](value)
    if isinstance(node, ast.BinOp):
        left, right = _calculate(node.left), _calculate(node.right)
        if max(left.bit_length(), right.bit_length()) <= MAX_BITS and (
            not isinstance(node.op, ast.LShift) or right <= MAX_BITS
        ):
            return OPERATIONS[type(node.op)](left, right)
    raise Unreadable("this is no bitwise arithmetic")


def parse_expr(text: str, local_dict: dict[str, Any] | None = None) -> Any:
    """In place of sympy's function of this name."""
    return _build(_evaluate(lambda: _take_apart(_parse(text, local_dict or {}))))


def _parse(text: str, names: dict[str, Any]) -> Any:
    code = stringify_expr(text.strip(), names, dict(NAMES), standard_transformations)
    tree = ast.parse(code.strip(), mode="eval")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    texts = {id(each) for call in calls if _takes_text(call) for each in call.args}
    for node in ast.walk(tree):
        if id(node) not in texts and not _is_mathematics(node, names):
            raise Unreadable(f"{type(node).__name__} is no mathematics")
    return eval_expr(code, names, dict(NAMES))


def _takes_text(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in NAMED_BY_TEXT


def _is_mathematics(node: ast.AST, names: dict[str, Any]) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and not node.keywords
    if isinstance(node, ast.Name):
        return node.id in NAMES or node.id in names
    if isinstance(node, ast.Constant):
        return type(node.value) in (bool, int, float, complex)
    return isinstance(node, PERMITTED)


def _take_apart(value: Any) -> Any:
    """A value as JSON; KeyError for one that cannot be built again."""
    if isinstance(value, sympy.Integer) or type(value) in (bool, int):
        return ["int", hex(int(value))]
    if isinstance(value, sympy.Rational):
        return ["ratio", hex(value.p), hex(value.q)]
    if isinstance(value, sympy.Float):
        sign, mantissa, exponent, size = value._mpf_
        return ["float", sign, hex(mantissa), exponent, size, value._prec]
    if isinstance(value, sympy.Symbol):
        return ["name", value.name]
    if isinstance(value, float | complex):
        return _take_apart(sympy.sympify(value))
    if isinstance(value, tuple | list):
        return ["tuple", *map(_take_apart, value)]
    name = type(value).__name__
    if CLASSES[name] is not type(value):
        raise KeyError(name)
    return [name, *map(_take_apart, value.args)]


def _build(parts: Any) -> Any:
    """The value that was taken apart. Whoever wrote `parts` has executed the text."""
    kind, *rest = parts
    if kind == "int":
        return sympy.Integer(int(rest[0], 16))
    if kind == "ratio":
        return sympy.Rational(int(rest[0], 16), int(rest[1], 16))
    if kind == "float":
        sign, mantissa, exponent, size, precision = rest
        number = (int(sign), int(mantissa, 16), int(exponent), int(size))
        return sympy.Float(number, precision=min(int(precision), MAX_BITS))
    if kind == "name":
        if not str(rest[0]).isidentifier():
            raise Unreadable("this is no name")
        return sympy.Symbol(rest[0])
    if kind == "tuple":
        return tuple(map(_build, rest))
    return CLASSES[kind](*map(_build, rest))


def _find_classes() -> dict[str, type]:
    """Classes of sympy that are expressions, by name; not those whose name is not unique."""
    found: dict[str, type | None] = {"Tuple": sympy.Tuple}
    waiting = [sympy.Expr, sympy.logic.boolalg.Boolean]
    while waiting:
        for each in waiting.pop().__subclasses__():
            if each not in found.values() and each.__module__.startswith("sympy."):
                found[each.__name__] = None if each.__name__ in found else each
                waiting.append(each)
    return {name: each for name, each in found.items() if each is not None}


def _find_names() -> dict[str, Any]:
    """What sympy's parser knows by name, without Python's functions that are no mathematics."""
    found: dict[str, Any] = {}
    exec("from sympy import *", found)
    del found["__builtins__"]
    names = {name: each for name, each in found.items() if not isinstance(each, ModuleType)}
    own = {name: each for name, each in names.items() if not isinstance(each, BuiltinFunctionType)}
    return {**own, **BUILTINS, "max": sympy.Max, "min": sympy.Min}


CLASSES, NAMES = _find_classes(), _find_names()

for _module in (binary_matrix, n_queens, number_sorting, spiral_matrix, string_insertion):
    _module.eval = evaluate_literal
bitwise_arithmetic.eval = evaluate_bits
countdown.parse_expr = puzzle24.parse_expr = sympy.parse_expr = parse_expr

SCORERS = {
    family: reasoning_gym.get_score_answer_fn(family)
    for family in (
        *("binary_matrix", "bitwise_arithmetic", "countdown", "intermediate_integration"),
        *("n_queens", "number_sorting", "polynomial_multiplication", "puzzle24"),
        *("simple_integration", "spiral_matrix", "string_insertion"),
    )
}


def _warm_up() -> None:
    """Have sympy import and build what it does at first use, once and not in each verdict."""
    global _evaluate
    _evaluate = lambda evaluate: evaluate()  # noqa: E731
    row = {"question": "", "metadata": {"variable": "x", "numbers": [3, 8, 2], "target": 22}}
    for family, answer, texts in (
        ("simple_integration", "x**2/2 + sin(x) + C", {"integrand": "x + cos(x)"}),
        ("intermediate_integration", "x*exp(x)/2", {"integrand": "x*exp(x)/2 + exp(x)/2"}),
        ("intermediate_integration", "log(x) - 1", {"integrand": "tan(x)**2 + sqrt(x)"}),
        ("polynomial_multiplication", "x**2 - y/3", {}),
        ("countdown", "3*8 - 2", {}),
        ("bitwise_arithmetic", "0x3", {"problem": "(0x1 + 0x2)"}),
    ):
        metadata = {**row["metadata"], **texts, "source_dataset": family}
        score({**row, "answer": "x**2 - y/3", "metadata": metadata}, answer)
    _evaluate = evaluate_apart


_warm_up()
