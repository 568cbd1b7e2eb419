"""Symbolic equality by math-verify, in a worker process of `app.py`.

Only this file imports sympy. math-verify's own time limits are off: they are signals, which do not
interrupt long computations in sympy. The caller kills this process at its limit instead.

math-verify and sympy hand plain numbers to sympy's parser, which has Python evaluate its text.
`parse_numbers` takes its place, so that no answer is ever evaluated here.
"""

import logging
import math
import re
import sys
from pathlib import Path
from typing import Any

import sympy
import sympy.parsing
from sympy.parsing import sympy_parser

TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)|(\*\*|[-+*/()]))")

MAX_DEPTH = 50
"""Of parentheses, signs and powers."""

MAX_BITS, MAX_EXPONENT_BITS = 1 << 20, 21
"""Numbers that have more are not computed, and no exponent of more can stay below them."""

MAX_CHOICE = 1 << 14
"""Binomials of more take seconds."""

GROWING = (sympy.factorial, sympy.factorial2, sympy.subfactorial, sympy.binomial, sympy.gamma)
"""Functions whose values have about as many digits as their argument says."""

CLASSES = {"+": sympy.Add, "*": sympy.Mul, "**": sympy.Pow}


class _Numbers:
    """Reads sums, products and powers of numbers as sympy's parser does, and nothing else.

    A sum, a product or a power is a list of its class and its parts until it is built, because
    nested sums become one.
    """

    def __init__(self, text: str, evaluate: bool) -> None:
        self._evaluate = evaluate
        self._tokens, at, self._depth = [], 0, 0
        text = text.strip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise SyntaxError(f"not a number: {text[:50]}")
            self._tokens.append(found.group(1) or found.group(2))
            at = found.end()
        self._tokens.reverse()

    def read(self) -> sympy.Expr:
        value = self._build(self._read_sum())
        if self._tokens:
            raise SyntaxError(f"unexpected {self._tokens[-1]}")
        return value

    def _take(self, *wanted: str) -> str:
        return self._tokens.pop() if self._tokens and self._tokens[-1] in wanted else ""

    def _read_sum(self) -> Any:
        value = self._read_product()
        while sign := self._take("+", "-"):
            part = self._read_product()
            value = self._join(
                "+", value, ["*", sympy.S.NegativeOne, part] if sign == "-" else part
            )
        return value

    def _read_product(self) -> Any:
        value = self._read_signed()
        while sign := self._take("*", "/"):
            part = self._read_signed()
            inverse = ["**", part, sympy.S.NegativeOne]
            value = self._join("*", value, inverse if sign == "/" else part)
        return value

    def _read_signed(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SyntaxError("too deep")
        if sign := self._take("+", "-"):
            value = self._build(self._read_signed())
            value = -value if sign == "-" else value
        else:
            value = self._read_atom()
            if self._take("**"):
                value = ["**", value, self._read_signed()]
        self._depth -= 1
        return value

    def _read_atom(self) -> Any:
        token = self._tokens.pop() if self._tokens else ""
        if token == "(":
            value = self._read_sum()
            if not self._take(")"):
                raise SyntaxError("a parenthesis is open")
            return value
        if token.isdigit():
            if token[0] == "0" and token.strip("0"):
                raise SyntaxError("a number starts with 0")
            return sympy.Integer(int(token))
        if token[:1].isdigit() or token[:1] == ".":
            return sympy.Float(token)
        raise SyntaxError(f"unexpected {token or 'end'}")

    @staticmethod
    def _join(kind: str, *parts: Any) -> list[Any]:
        joined: list[Any] = [kind]
        for part in parts:
            joined += part[1:] if isinstance(part, list) and part[0] == kind else [part]
        return joined

    def _build(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, *parts = value
        return CLASSES[kind](*map(self._build, parts), evaluate=self._evaluate)


def parse_numbers(text: str, *_: Any, evaluate: bool = True, **__: Any) -> sympy.Basic:
    """In place of sympy's `parse_expr`; SyntaxError for anything but numbers, and a single name,
    which sympy itself asks for."""
    if text.isidentifier():
        known = getattr(sympy, text, None)
        return known if isinstance(known, sympy.Basic) else sympy.Symbol(text)
    return _Numbers(text, evaluate).read()


# both names, and before math-verify takes one of them
sympy_parser.parse_expr = sympy.parsing.parse_expr = sympy.parse_expr = parse_numbers

from latex2sympy2_extended import math_normalization  # noqa: E402
from math_verify import (  # noqa: E402
    ExprExtractionConfig,
    LatexExtractionConfig,
    grader,
    parse,
    verify,
)

sys.path.insert(0, str(Path(__file__).parent))

import answers  # noqa: E402
import closeness  # noqa: E402

logging.disable(logging.CRITICAL)

LATEX, NUMBER = LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()
"""What math-verify finds in an answer: a formula, or the last number of a text."""

GREEK = "alpha,beta,gamma,delta,epsilon,zeta,eta,theta,iota,kappa,lambda,mu,nu,xi,,pi,rho,,sigma"
GREEK += ",tau,upsilon,phi,chi,psi,omega"

TYPED = str.maketrans(
    {
        "−": "-",
        "×": "\\times ",
        "·": "\\cdot ",
        "÷": "/",
        **{chr(ord("α") + at): f"\\{name} " for at, name in enumerate(GREEK.split(",")) if name},
        "°": "^\\circ",
        "∞": "\\infty ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "∪": "\\cup ",
    }
)


class TooLarge(ValueError):
    """A number that takes long to compute, and that no answer needs."""


def bound_integers() -> None:
    """Have sympy leave powers and binomials as they are that take seconds to compute."""
    powers = {kind: kind._eval_power for kind in (sympy.Integer, sympy.Rational)}
    choose = sympy.binomial.eval.__func__

    def power(base: Any, exponent: Any) -> Any:
        if exponent.is_Integer and _bits(base) > 1 and _bits(base) * abs(exponent.p) > MAX_BITS:
            return None
        return powers[sympy.Integer if base.is_Integer else sympy.Rational](base, exponent)

    def binomial(cls: Any, n: Any, k: Any) -> Any:
        return None if _magnitude(sympy.sympify(n)) > MAX_CHOICE else choose(cls, n, k)

    sympy.Integer._eval_power = sympy.Rational._eval_power = power
    sympy.binomial.eval = classmethod(binomial)


def _bits(number: Any) -> int:
    return max(abs(number.p), number.q).bit_length()


def estimate_bits(expr: Any) -> float:
    """About how many bits the largest number has that computing `expr` needs; TooLarge if these are
    more than MAX_BITS. Unknowns count as small numbers."""
    if isinstance(expr, sympy.Rational):
        return _bits(expr)
    if isinstance(expr, sympy.Float):
        return abs(expr._mpf_[2] + expr._mpf_[3])
    sizes = [estimate_bits(part) for part in getattr(expr, "args", ())]
    if isinstance(expr, sympy.Pow | sympy.exp):
        base = sizes[0] if isinstance(expr, sympy.Pow) else 2
        return _check_size(max(base, 2) * _magnitude(expr.args[-1]))
    if isinstance(expr, GROWING):
        most = max(map(_magnitude, expr.args))
        return _check_size(most * math.log2(most + 2))
    return _check_size(sum(sizes) if isinstance(expr, sympy.Mul) else max(sizes, default=1))


def _magnitude(expr: Any) -> float:
    """The size of a number whose parts are known to be small enough; 1 for other expressions."""
    if isinstance(expr, sympy.Integer):
        return min(abs(expr.p), 2 * MAX_BITS)
    value = expr.evalf(5) if getattr(expr, "is_number", False) else None
    if not isinstance(value, sympy.Float):
        return 1
    return 2 * MAX_BITS if estimate_bits(value) > MAX_EXPONENT_BITS else abs(float(value))


def _check_size(bits: float) -> float:
    if bits > MAX_BITS:
        raise TooLarge
    return bits


bound_integers()

# math-verify drops what is below 1e-15, and rounds to six places
grader.sympy_numeric_eq = closeness.are_close


def solve(*args: Any) -> Any:
    """In place of sympy's: an error if there is no solution, because math-verify takes equations
    without one as equal."""
    solutions = sympy.solve(*args)
    if solutions == []:
        raise ValueError("no solution")
    return solutions


grader.solve = solve

# math-verify drops as a unit what stands between the first text and the end
math_normalization.unit_superscript_regex = re.compile(
    r"\\(?:text|mbox)\{[^{}]*\}(?:\^\d|\{\^\d\})?$"
)

ROOT = re.compile(r"(?:(?<![\\A-Za-z])sqrt|√)\s*(?:\(([^()]*)\)|(\d+))")
WORD = re.compile(r"(?<![\\A-Za-z])(pi|infinity|inf)(?![A-Za-z])")
NAMES = {"pi": "\\pi ", "infinity": "\\infty ", "inf": "\\infty "}
PRIMES = re.compile(r"(?<=[A-Za-z])'+(?!\w)")
"""Of derivatives and of points, which math-verify drops."""
COMMAND = re.compile(r"\\[A-Za-z]")
SCIENTIFIC = re.compile(r"(?<![A-Za-z\\\d.])(\d+\.?\d*)[eE]([-+]?\d{1,3})(?![\w.])")
MIXED = re.compile(r"(?<![\w.)}\]^_/])(\d+)\s+(\d+)/(\d+)(?![\w.])")


def are_equal(expected: str, answer: str) -> bool:
    """Whether two answers are equal; False if they cannot be parsed or compared."""
    pairs = answers.pair_items(expected, answer)
    if pairs is None:
        return _compare(answers.ENDLESS.sub(r"\1", expected), answers.ENDLESS.sub(r"\1", answer))
    if isinstance(pairs, bool):
        return pairs
    return all(_are_items_equal(*pair) for pair in pairs)


def _are_items_equal(expected: str, answer: str) -> bool:
    decided = answers.are_equal(expected, answer)
    if decided is None and not answers.DOTS.search(expected + answer):
        decided = _compare(expected, answer)
    return bool(decided)


def _compare(expected: str, answer: str) -> bool:
    (value, condition), (other, under) = map(answers.split_condition, (expected, answer))
    if condition and under:
        return condition == under and _compare(value, other)
    if answers.SUBSCRIPT.search(expected) and answers.SUBSCRIPT.search(answer):
        expected, answer = _name_numerals(expected), _name_numerals(answer)
    return any(_compare_parsed(*pair) for pair in answers.read_percent(expected, answer))


def _name_numerals(answer: str) -> str:
    """A name for each numeral, because math-verify ignores the base."""
    return answers.SUBSCRIPT.sub(_write_name, answer)


def _write_name(found: re.Match[str]) -> str:
    base = re.sub(r"\W|text|mathrm|rm", "", found[2]).lower()
    return f"N_{{{found[1].lstrip('0').upper()}b{answers.BASE.get(base, base)}}}"


def _compare_parsed(expected: str, answer: str) -> bool:
    try:
        one, other = _parse(expected), _parse(answer)
        try:
            for parsed in (*one, *other):
                estimate_bits(parsed)
        except TooLarge:
            return any(each in other for each in one)
        if any(isinstance(each, sympy.Set) for each in one):
            other = [closeness.as_interval(each) for each in other]
        return bool(verify(one, other, allow_set_relation_comp=True, timeout_seconds=None))
    except Exception:  # sympy raises exceptions of any type on unusual input
        return False


def _parse(answer: str) -> list:
    latex = _to_latex(answer)
    # the last number of a formula that cannot be parsed is not its value
    targets = (LATEX,) if COMMAND.search(latex) else (LATEX, NUMBER)
    return parse(f"\\boxed{{{latex}}}", targets, parsing_timeout=None)


def _to_latex(answer: str) -> str:
    answer = answers.write_repeating(answer).translate(TYPED).translate(answers.TYPED)
    answer = PRIMES.sub(lambda found: f"_{{{len(found[0]) * 'p'}}}", answer)
    answer = answers.RAISED.sub(lambda found: f"^{{{found[0].translate(answers.LOWERED)}}}", answer)
    answer = SCIENTIFIC.sub(r"\1 \\times 10^{\2}", answer)
    answer = MIXED.sub(_write_mixed, answer)
    answer = ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", answer)
    return WORD.sub(lambda found: NAMES[found[1]], answer)


def _write_mixed(found: re.Match[str]) -> str:
    whole, top, bottom = found.groups()
    is_mixed = int(top) < int(bottom)
    return f"\\left({whole}+\\frac{{{top}}}{{{bottom}}}\\right)" if is_mixed else found[0]


# the parser builds tables at first use; do it before the first deadline starts
for _expected, _answer in [
    (r"\frac{1}{2}", "0.25 + 1/4"),
    (r"\sqrt{2}/2", r"\frac{1}{\sqrt{2}}"),
    (r"[0,\infty)", "x \\ge 0"),
    (r"y=2x+1", "2x+1=y"),
    (r"x^2+2x+1", "(x+1)^2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
]:
    are_equal(_expected, _answer)
