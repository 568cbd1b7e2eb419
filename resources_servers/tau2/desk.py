"""What the desks of all domains have: the database, a calculator, and the way to a person."""

import math
import operator
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from rollout_kit import ToolError, tool

from .database import Database, Tables

MAX_BITS = 10_000
"""Of the largest integer that is calculated."""

MAX_DEPTH = 50
"""Brackets and signs inside of one another."""

TERM = re.compile(r"\s*(\*\*|//|[-+*/()]|\d+\.?\d*|\.\d+)")

LEVELS: list[dict[str, Callable[[Any, Any], Any]]] = [
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv},
]
"""Operators by how strongly they bind."""


def text(about: str) -> Any:
    """A parameter that is a text."""
    return Annotated[str, Field(description=about)]


class Desk:
    """The state of a session. Tools answer with a text, a record or a ToolError."""

    def __init__(self, shared: Database) -> None:
        self.db = Tables(shared)

    @tool
    async def calculate(
        self,
        expression: Annotated[
            str,
            Field(
                description="The mathematical expression to calculate, such as '2 + 2'. The"
                " expression can contain numbers, operators (+, -, *, /), parentheses, and spaces."
            ),
        ],
    ) -> str:
        """Calculate the result of a mathematical expression."""
        if not all(each in "0123456789+-*/(). " for each in expression):
            raise ToolError("Invalid characters in expression")
        try:
            return str(round(float(Sum(expression).read()), 2))
        except (ArithmeticError, ValueError) as error:
            raise ToolError(f"Invalid expression: {error}") from None

    @tool
    async def transfer_to_human_agents(
        self, summary: Annotated[str, Field(description="A summary of the user's issue.")]
    ) -> str:
        """Transfer the user to a human agent, with a summary of the user's issue.
        Only transfer if
         -  the user explicitly asks for a human agent
         -  given the policy and the available tools, you cannot solve the user's issue."""
        return "Transfer successful"


class Sum:
    """Reads an expression of numbers. ValueError if it is none."""

    def __init__(self, expression: str) -> None:
        terms = TERM.findall(expression)
        if "".join(terms) != expression.replace(" ", ""):
            raise ValueError("it is no sum")
        self._terms, self._at, self._depth = terms, 0, 0

    def read(self) -> float:
        value = self._read_level(0)
        if self._at < len(self._terms):
            raise ValueError(f"'{self._terms[self._at]}' is not expected")
        return value

    def _next(self) -> str:
        return self._terms[self._at] if self._at < len(self._terms) else ""

    def _read_level(self, level: int) -> Any:
        if level == len(LEVELS):
            return self._read_signed()
        value = self._read_level(level + 1)
        while (sign := self._next()) in LEVELS[level]:
            self._at += 1
            value = _check(LEVELS[level][sign](value, self._read_level(level + 1)))
        return value

    def _read_signed(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError("it is too deep")
        try:
            if (sign := self._next()) in ("+", "-"):
                self._at += 1
                value = self._read_signed()
                return -value if sign == "-" else value
            value = self._read_term()
            if self._next() == "**":
                self._at += 1
                value = _raise(value, self._read_signed())
            return value
        finally:
            self._depth -= 1

    def _read_term(self) -> Any:
        term = self._next()
        self._at += 1
        if term == "(":
            value = self._read_level(0)
            if self._next() != ")":
                raise ValueError("a bracket does not end")
            self._at += 1
            return value
        if not term or not (term[0].isdigit() or term[0] == "."):
            raise ValueError(f"'{term}' is not expected")
        if term.isdigit() and len(term) > 1 and term[0] == "0" and term.strip("0"):
            raise ValueError(f"'{term}' begins with 0")
        return int(term) if term.isdigit() else float(term)


def _raise(base: Any, exponent: Any) -> Any:
    are_whole = type(base) is int and type(exponent) is int
    if are_whole and exponent > 0 and abs(base) > 1 and exponent * math.log2(abs(base)) > MAX_BITS:
        raise ValueError("the result is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError("the result is a complex number")
    return value


def _check(value: Any) -> Any:
    if type(value) is int and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large")
    return value
