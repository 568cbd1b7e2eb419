"""Filters over rollouts: `reward < 0.5 and num_turns > 8 and "timeout" in text`, and over what
happened in them: `any(tool == "bash" and error)`.

The syntax is that of Python's comparisons. An expression is parsed once, checked against a list of
allowed forms, and interpreted; it is never run as code.

Names are the fields of `fields_of`, the numbers and texts that the verifier set, and the fields of
the row. A field that a rollout lacks is None: it equals only None, and no comparison with `<`,
`>` or `in` holds for it.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

from ...errors import ConfigError, suggest
from ...types import Rollout
from ..head import FIELDS
from ..scope import arm_of_key
from .turn_fields import ON_TURNS, TURN_FIELDS, TURNS, read_inside, read_uses

MAX_CHARS, MAX_DEPTH = 10_000, 50

ORDERS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}

EQUALS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.Is: operator.eq,
    ast.NotEq: operator.ne,
    ast.IsNot: operator.ne,
}

SUMS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "abs": abs,
    "len": len,
    "lower": lambda text: text.lower(),
}

CONSTANTS = {"true": True, "false": False, "null": None}
"""Spellings of JSON."""

WRONG_VALUES = (TypeError, AttributeError, ArithmeticError)
"""What an expression raises for values that it does not fit."""

HOW = "as in  reward < 0.5 and num_turns > 8 and 'timeout' in text"


def fields_of(rollout: Rollout) -> dict[str, Callable[[], Any]]:
    """The fields of every rollout that an expression can name; each is read when it is asked
    for."""
    info = rollout.info
    return {
        "reward": lambda: rollout.reward,
        "group_reward": lambda: rollout.group_reward,
        "text": lambda: rollout.text,
        "task_id": lambda: info.key.task_id,
        "task_index": lambda: info.task_index,
        "agent": lambda: info.key.agent,
        "scope": lambda: info.key.scope,
        "arm": lambda: arm_of_key(info.key) or None,
        "seed": lambda: info.arm.seed if info.arm else None,
        "rollout_index": lambda: info.key.rollout_index,
        **{field.name: partial(getattr, info, field.name) for field in FIELDS},
        "labels": lambda: rollout.labels,
        "scans": lambda: rollout.scans,
        TURNS: lambda: read_uses(rollout.line),
        "is_verified": lambda: rollout.reward is not None,
        "status": lambda: "unverified" if rollout.reward is None else "verified",
    }


def read_field(rollout: Rollout, fields: Mapping[str, Callable[[], Any]], name: str) -> Any:
    """A field of a rollout, among its `fields_of`, or else of its line; None if it lacks it."""
    field = fields.get(name)
    return rollout.line.get(name) if field is None else field()


class Filter:
    """One expression. Call it with a rollout."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = parse(text)
        self._missing = names_in(self.tree)
        self._seen: set[str] = set()

    def __call__(self, rollout: Rollout) -> bool:
        fields = fields_of(rollout)
        if self._missing:
            known = {name for name in self._missing if name in fields or name in rollout.line}
            self._missing -= known
            if self._missing and len(self._seen) < MAX_CHARS:
                self._seen.update(fields, rollout.line)

        try:
            return bool(evaluate(self.tree, partial(read_field, rollout, fields)))
        except WRONG_VALUES as error:
            key = rollout.info.key
            raise ConfigError(
                f"{self.text}: {error}, for task {key.task_id}, rollout {key.rollout_index}"
            ) from None

    def part(self, tree: ast.expr) -> "Filter":
        """A filter of a part of the expression; what it learns of names, this one knows too."""
        found = copy(self)
        found.tree = tree
        return found

    def note_known(self, names: set[str]) -> None:
        """Note that rollouts have these fields."""
        self._missing -= names

    def check(self) -> None:
        """ConfigError if a name was in none of the rollouts seen: probably it is misspelled."""
        if self._missing and self._seen:
            name = min(self._missing)
            raise ConfigError(
                f"{self.text}: no rollout has the field '{name}'{suggest(name, self._seen)}"
            )


@contextmanager
def filtering(text: str | None) -> Iterator[Filter | None]:
    """Context with the filter of a key, or None; at its end `check`, as all rollouts were seen."""
    keeps = Filter(text) if text else None
    yield keeps
    if keeps is not None:
        keeps.check()


def parse(text: str) -> ast.expr:
    """The checked tree of an expression; ConfigError if it is none."""
    try:
        if len(text) > MAX_CHARS:
            raise ConfigError(f"a filter of {len(text):,} characters is too long")
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or "it cannot be parsed"
        raise ConfigError(f"{text[:200]!r} is no filter: {reason}; {HOW}") from None
    for problem in _problems(tree, 0):
        raise ConfigError(f"{text[:200]!r} is no filter: {problem}; {HOW}")
    return tree


def names_in(tree: ast.AST) -> set[str]:
    """The fields that a checked expression names; TURNS if it asks anything of the turns."""
    if isinstance(tree, ast.Name):
        return {tree.id} - CONSTANTS.keys()
    if isinstance(tree, ast.Call):
        inside = names_in(tree.args[0])
        return inside - TURN_FIELDS.keys() | {TURNS} if _is_on_turns(tree) else inside
    found = set[str]()
    return found.union(*map(names_in, ast.iter_child_nodes(tree)))


def _is_on_turns(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ON_TURNS


def _problems(node: ast.AST, depth: int, *, is_inside: bool = False) -> Iterator[str]:
    """What is not allowed in an expression. `is_inside`: it is asked of single turns."""
    if depth > MAX_DEPTH:
        yield "it is nested too deep"
        return
    match node:
        case ast.BoolOp() | ast.Name() | ast.List() | ast.Tuple() | ast.Load():
            pass
        case ast.And() | ast.Or() | ast.Not() | ast.USub():
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            pass
        case ast.BinOp(op=op) if type(op) in SUMS:
            pass
        case ast.Compare():
            pass
        case ast.Constant(value=value) if isinstance(value, str | int | float | bool | None):
            pass
        case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]) if name in FUNCTIONS:
            pass
        case ast.Call(args=[inner], keywords=[]) if _is_on_turns(node) and not is_inside:
            yield from _problems(inner, depth + 1, is_inside=True)
            return
        case ast.operator() | ast.cmpop():
            pass
        case ast.Call():
            yield f"the only functions are {', '.join((*FUNCTIONS, *ON_TURNS))}, with one argument"
            return
        case _:
            yield f"{ast.unparse(node)!r:.60} is not allowed"
            return
    for child in ast.iter_child_nodes(node):
        yield from _problems(child, depth + 1, is_inside=is_inside)


def evaluate(node: ast.expr, read: Callable[[str], Any]) -> Any:
    """The value of a checked expression, with the fields that `read` returns."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(evaluate(each, read) for each in values)
        case ast.BoolOp(values=values):
            return any(evaluate(each, read) for each in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not evaluate(operand, read)
        case ast.UnaryOp(operand=operand):
            inner = evaluate(operand, read)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=op, right=right):
            one, other = evaluate(left, read), evaluate(right, read)
            if one is None or other is None:
                return None
            if isinstance(op, ast.Mult) and not all(map(_is_number, (one, other))):
                raise TypeError("only numbers can be multiplied")
            return SUMS[type(op)](one, other)
        case ast.Compare():
            return _compare(node, read)
        case ast.Call(func=ast.Name(id=name), args=[argument]) if name in ON_TURNS:
            return ON_TURNS[name](
                bool(evaluate(argument, partial(read_inside, use, read))) for use in read(TURNS)
            )
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            inner = evaluate(argument, read)
            return None if inner is None else FUNCTIONS[name](inner)
        case ast.Name(id=name):
            return CONSTANTS[name] if name in CONSTANTS else read(name)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [evaluate(each, read) for each in items]
        case ast.Constant(value=value):
            return value
        case _:
            raise AssertionError(ast.dump(node))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _compare(node: ast.Compare, read: Callable[[str], Any]) -> bool:
    left = evaluate(node.left, read)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(right_node, read)
        if type(op) in EQUALS:
            holds = EQUALS[type(op)](left, right)
        elif left is None or right is None:
            holds = False
        else:
            holds = ORDERS[type(op)](left, right)
        if not holds:
            return False
        left = right
    return True
