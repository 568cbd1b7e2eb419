"""Filters over columns: a byte for each row, 1 where the expression holds.

An expression is computed node by node over whole columns, 30 ms per million rows and comparison.
The meaning is that of `expression.py`: a number that a row lacks is None there and NaN here.
"""

from __future__ import annotations

import ast
import operator
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from itertools import repeat
from math import isnan
from typing import Any

from ...errors import ConfigError
from ..columns import Columns
from ..compact import hex_number
from ..scope import parse_scope
from .expression import EQUALS, ORDERS, SUMS, WRONG_VALUES, evaluate, names_in


class _NoColumns(Exception):
    """A part of an expression that needs the values of single rows."""


def split(tree: ast.expr, columns: Columns) -> tuple[ast.expr | None, ast.expr | None]:
    """The part of the expression that columns can answer, and the part that needs the lines; both
    must hold."""
    parts = tree.values if isinstance(tree, ast.BoolOp) and _is_and(tree) else [tree]
    quick = [part for part in parts if all(_is_column(columns, name) for name in names_in(part))]
    return _join(quick), _join([part for part in parts if part not in quick])


def _join(parts: list[ast.expr]) -> ast.expr | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return ast.BoolOp(ast.And(), parts)


def mask_of(part: ast.expr, columns: Columns, num_rows: int) -> bytes:
    """Where `part` holds among the first rows; ConfigError for a comparison of unlike values."""
    try:
        return _mask(part, columns, num_rows)
    except (_NoColumns, *WRONG_VALUES):
        pass  # row by row, as a row without a value may not come to the comparison that fails
    try:
        return _mask_by_row(part, columns, num_rows)
    except WRONG_VALUES as error:
        raise ConfigError(f"{ast.unparse(part)}: {error}") from None


def both(one: bytes, other: bytes) -> bytes:
    """Where both masks hold."""
    joined = int.from_bytes(one, "little") & int.from_bytes(other, "little")
    return joined.to_bytes(len(one), "little")


def either(one: bytes, other: bytes) -> bytes:
    joined = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return joined.to_bytes(len(one), "little")


def _is_and(tree: ast.BoolOp) -> bool:
    return isinstance(tree.op, ast.And)


def _is_column(columns: Columns, name: str) -> bool:
    name = "scope" if name == "arm" else name
    if name in COMPUTED:
        return True
    if (text := columns.texts.get(name)) is not None:
        return not text.is_partial
    return name in columns.numbers


def _mask(node: ast.expr, columns: Columns, num_rows: int) -> bytes:
    match node:
        case ast.BoolOp(op=op, values=values):
            join = both if isinstance(op, ast.And) else either
            found = _mask(values[0], columns, num_rows)
            for value in values[1:]:
                found = join(found, _mask(value, columns, num_rows))
            return found
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _mask(operand, columns, num_rows).translate(_INVERTED)
        case ast.Constant(value=value):
            return bytes([bool(value)]) * num_rows
        case ast.Name(id="is_verified"):
            return _equal(columns.numbers["reward"][:num_rows], None, num_rows).translate(_INVERTED)
        case ast.Compare(
            left=ast.Name(id="task_id"), ops=[ast.Eq()], comparators=[ast.Constant(value=str(task))]
        ):
            return _mask_of_rows(rows_of_task(columns, task), num_rows)
    names = names_in(node)
    if not names:
        return bytes([bool(evaluate(node, lambda name: None))]) * num_rows
    if names == {"status"}:
        return _mask_of_status(node, columns, num_rows)
    if names == {"arm"}:
        return _mask_of_text(node, columns, "scope", num_rows, _arm_of)
    if names & COMPUTED.keys():
        raise _NoColumns
    if len(names) == 1 and (name := next(iter(names))) in columns.texts:
        if name in columns.numbers:  # some values are numbers
            raise _NoColumns
        return _mask_of_text(node, columns, name, num_rows)
    if isinstance(node, ast.Compare):
        return _compare(node, columns, num_rows)
    return _truth(_numbers(node, columns, num_rows))


def _mask_of_text(
    node: ast.expr,
    columns: Columns,
    name: str,
    num_rows: int,
    read: Callable[[str | None], str | None] = lambda text: text,
) -> bytes:
    """Decide for what `read` makes of each distinct text, then look up the rows."""
    column = columns.texts[name]
    codes = column.codes[:num_rows]
    texts = list(map(read, list(column.names)))
    holds = bytes(bool(evaluate(node, lambda _, text=text: text)) for text in texts)
    return bytes(map(holds.__getitem__, codes))


def _mask_of_status(node: ast.expr, columns: Columns, num_rows: int) -> bytes:
    kinds = columns.texts["kind"]
    failed = bytes(name == "failure" for name in list(kinds.names))
    is_failed = bytes(map(failed.__getitem__, kinds.codes[:num_rows]))
    has_reward = _equal(columns.numbers["reward"][:num_rows], None, num_rows).translate(_INVERTED)
    rows = {"failed": is_failed, "verified": both(has_reward, is_failed.translate(_INVERTED))}
    rows["unverified"] = either(*rows.values()).translate(_INVERTED)
    chosen = [mask for name, mask in rows.items() if evaluate(node, lambda _, name=name: name)]
    return reduce(either, chosen, bytes(num_rows))


def _compare(node: ast.Compare, columns: Columns, num_rows: int) -> bytes:
    sides = [node.left, *node.comparators]
    found = b""
    for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
        mask = _compare_two(op, left, right, columns, num_rows)
        found = both(found, mask) if found else mask
    return found


def _compare_two(
    op: ast.cmpop, left: ast.expr, right: ast.expr, columns: Columns, num_rows: int
) -> bytes:
    ones = _side(left, columns, num_rows)
    others = _side(right, columns, num_rows)
    if type(op) in EQUALS:
        equal = _equal(ones, others, num_rows)
        return equal if isinstance(op, ast.Eq | ast.Is) else equal.translate(_INVERTED)
    if ones is None or others is None:
        return bytes(num_rows)
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(ones, array) or not isinstance(others, list):
            raise _NoColumns
        inside = bytes(each in others for each in ones)
        known = bytes(map(operator.eq, ones, ones))
        return both(known, inside if isinstance(op, ast.In) else inside.translate(_INVERTED))
    pair = [each if isinstance(each, array) else repeat(each, num_rows) for each in (ones, others)]
    return bytes(map(ORDERS[type(op)], *pair))


def _equal(ones: Any, others: Any, num_rows: int) -> bytes:
    if not isinstance(ones, array):
        ones, others = others, ones
    if not isinstance(ones, array):
        return bytes([ones == others]) * num_rows
    if others is None:
        return bytes(map(operator.ne, ones, ones))
    if not isinstance(others, array):
        return bytes(map(operator.eq, ones, repeat(others)))
    same = bytes(map(operator.eq, ones, others))
    empty = both(bytes(map(operator.ne, ones, ones)), bytes(map(operator.ne, others, others)))
    return either(same, empty)


def _side(node: ast.expr, columns: Columns, num_rows: int) -> Any:
    """A column, or a constant."""
    if not names_in(node):
        return evaluate(node, lambda name: None)
    return _numbers(node, columns, num_rows)


def _numbers(node: ast.expr, columns: Columns, num_rows: int) -> array[float]:
    """A column of numbers; _NoColumns if the values are none."""
    match node:
        case ast.Name(id=name) if name in columns.numbers and name not in columns.texts:
            return columns.numbers[name][:num_rows]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return array("d", map(operator.neg, _numbers(operand, columns, num_rows)))
        case ast.BinOp(left=left, op=op, right=right):
            sides = [_side(each, columns, num_rows) for each in (left, right)]
            if None in [each for each in sides if not isinstance(each, array)]:
                raise _NoColumns
            pairs = [each if isinstance(each, array) else repeat(each) for each in sides]
            return array("d", map(SUMS[type(op)], *pairs))
        case ast.Call(func=ast.Name(id="abs"), args=[argument]):
            return array("d", map(abs, _numbers(argument, columns, num_rows)))
    raise _NoColumns


def _truth(numbers: array[float]) -> bytes:
    return bytes(bool(each) and each == each for each in numbers)


def _mask_by_row(part: ast.expr, columns: Columns, num_rows: int) -> bytes:
    return bytes(
        bool(evaluate(part, lambda name, row=row: value_in(columns, name, row)))
        for row in range(num_rows)
    )


def value_in(columns: Columns, name: str, row: int) -> Any:
    """The value of a column, or of what is computed from columns."""
    compute = COMPUTED.get(name)
    return columns.value(name, row) if compute is None else compute(columns, row)


def _mask_of_rows(rows: Iterable[int], num_rows: int) -> bytes:
    mask = bytearray(num_rows)
    for row in rows:
        if row < num_rows:
            mask[row] = 1
    return bytes(mask)


def rows_of_task(columns: Columns, task_id: str) -> list[int]:
    """The rows of a task, by its id."""
    number = hex_number(task_id)
    if number is None:
        return [row for row in range(len(columns)) if columns.task_id(row) == task_id]
    found, at = [], 0
    with suppress(ValueError):  # there is no further one
        while True:
            at = columns.tasks.index(number, at)
            if columns.task_id(at) == task_id:
                found.append(at)
            at += 1
    return found


def status_of(columns: Columns, row: int) -> str:
    """verified, unverified or failed."""
    kind = columns.texts["kind"][row]
    if kind == "failure":
        return "failed"
    is_bare = kind == "unverified" or isnan(columns.numbers["reward"][row])
    return "unverified" if is_bare else "verified"


def _arm_of(scope: str | None) -> str | None:
    return parse_scope(scope or "").arm or None


COMPUTED: Mapping[str, Callable[[Columns, int], Any]] = {
    "status": status_of,
    "task_id": Columns.task_id,
    "arm": lambda columns, row: _arm_of(columns.texts["scope"][row]),
    "is_verified": lambda columns, row: status_of(columns, row) == "verified",
}
"""Fields that are no columns of their own."""

_INVERTED = bytes([1]) + bytes(255)
"""Translates a mask into its opposite."""
