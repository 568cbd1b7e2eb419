"""Numeric equality of two expressions, in place of math-verify's, in the worker process.

Exact numbers are equal only if they are the same. Decimals count as rounded values, relative to
their size.
"""

from typing import Any

import sympy
from sympy.core.evalf import PrecisionExhausted

PLACES = 6
"""Decimals are compared as math-verify compares them, rounded to so many places."""

ROUNDED = 5e-4
"""Largest distance of a decimal relative to the value: four significant digits."""

SMALL, TYPED = 1e-3, 2e-6
"""Below the first, two decimals may differ by the second, relative to the value: as typed, they are
not each other's rounded value."""

COMPUTED = 1e-12
"""The same for expressions that contain decimals, and for values at sample points."""

DIGITS = 100
"""Exact numbers are equal if the first digits of their difference are all 0."""

PERCENT = sympy.UnevaluatedExpr(sympy.Rational(1, 100))


def are_close(one: Any, other: Any, *_: Any) -> bool:
    """In place of math-verify's `sympy_numeric_eq`."""
    if isinstance(one, _MATRIX) and isinstance(other, _MATRIX):
        one, other = _evaluate(one), _evaluate(other)
        return (
            isinstance(one, sympy.MatrixBase)
            and isinstance(other, sympy.MatrixBase)
            and one.shape == other.shape
            and all(map(are_close, one.flat(), other.flat()))
        )
    if isinstance(one, _MATRIX) or isinstance(other, _MATRIX):
        return False
    if _is_percent(one) and _is_percent(other):
        one, other = one.args[0], other.args[0]
    elif _is_percent(one) != _is_percent(other):
        bare = (one.args[0], other) if _is_percent(one) else (one, other.args[0])
        if all(isinstance(each, sympy.Integer) for each in bare) and bare[0] == bare[1]:
            return True
    one, other = _evaluate(one), _evaluate(other)
    if one == other:
        return True
    if one.free_symbols or other.free_symbols:
        return _vanishes(one - other) and _agree_at_samples(one, other)
    decimals = [isinstance(each, sympy.Float) for each in (one, other)]
    if any(decimals):
        tolerance = TYPED if all(decimals) and abs(one) < SMALL else ROUNDED
        return one.round(PLACES) == other.round(PLACES) and _is_near(one, other, tolerance)
    if one.has(sympy.Float) or other.has(sympy.Float):
        return _is_near(one, other, COMPUTED)
    return _is_zero(one - other)


def as_interval(expr: Any) -> Any:
    """`x >= 3` as an interval, which sympy itself takes long to find; other expressions as they
    are."""
    if not isinstance(expr, _INEQUALITY):
        return expr
    relation = expr if expr.lhs.is_Symbol else expr.reversed
    bound = relation.rhs
    if not relation.lhs.is_Symbol or not bound.is_number or bound.is_real is not True:
        return expr
    match relation:
        case sympy.Ge():
            return sympy.Interval(bound, sympy.oo)
        case sympy.Gt():
            return sympy.Interval.open(bound, sympy.oo)
        case sympy.Le():
            return sympy.Interval(-sympy.oo, bound)
        case _:
            return sympy.Interval.open(-sympy.oo, bound)


_INEQUALITY = (sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt)
_MATRIX = (sympy.MatrixBase, sympy.MatrixExpr)


def _evaluate(expr: Any) -> Any:
    """The computed value; the expression itself where sympy cannot compute it."""
    try:
        return expr.doit()
    except Exception:  # sympy raises exceptions of any type on unusual input
        return expr


def _is_percent(expr: Any) -> bool:
    return isinstance(expr, sympy.Mul) and len(expr.args) == 2 and expr.args[1] == PERCENT


def _is_zero(difference: Any) -> bool:
    if difference.is_Rational or difference.is_finite is False:
        return difference == 0
    try:
        return difference.evalf(5, maxn=DIGITS, strict=True) == 0
    except PrecisionExhausted:
        return True


def _is_near(one: Any, other: Any, tolerance: float) -> bool:
    one, other = one.evalf(), other.evalf()
    size = max(abs(one), abs(other))
    return bool(abs(one - other) <= tolerance * size)


def _vanishes(difference: Any) -> bool:
    return difference.evalf(chop=True, n=15) == 0


def _agree_at_samples(one: Any, other: Any) -> bool:
    """Whether two expressions are near to each other where their unknowns are fractions, because
    terms with small factors vanish as well."""
    unknowns = sorted(one.free_symbols | other.free_symbols, key=str)
    values = {each: sympy.Rational(7 + 3 * at, 5) for at, each in enumerate(unknowns)}
    return _is_near(one.subs(values), other.subs(values), COMPUTED)
