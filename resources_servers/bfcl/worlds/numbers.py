"""Calculations. Each reply is `result` or `error`."""

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from .world import World

MAX_DIGITS = 4_300
"""Longer integers cannot be written, so they are not computed."""

METRES = {"km": 1000, "m": 1, "cm": 0.01, "mm": 0.001, "um": 1e-6, "nm": 1e-9}

FACTORS = {
    **{("cm", "in"): 0.393701, ("in", "cm"): 2.54, ("m", "ft"): 3.28084, ("ft", "m"): 0.3048},
    **{("m", "yd"): 1.09361, ("yd", "m"): 0.9144, ("km", "miles"): 0.621371},
    **{("miles", "km"): 1.60934, ("kg", "lb"): 2.20462, ("lb", "kg"): 0.453592},
    **{("celsius", "fahrenheit"): 1.8, ("fahrenheit", "celsius"): 5 / 9},
}

TWO = "Both inputs must be numbers"

Reply = dict[str, Any]


def _try(compute: Callable[[], Any], error: str) -> Reply:
    try:
        return {"result": compute()}
    except TypeError:
        return {"error": error}


def _of_list(numbers: list[Any], name: str, compute: Callable[[list[Any]], Any]) -> Reply:
    if not numbers:
        return {"error": f"Cannot {name} of an empty list"}
    return _try(lambda: compute(numbers), "All elements in the list must be numbers")


def _deviate(numbers: list[Any]) -> float:
    mean = sum(numbers) / len(numbers)
    return math.sqrt(sum((each - mean) ** 2 for each in numbers) / len(numbers))


class MathAPI(World):
    def logarithm(self, value: float, base: float, precision: int) -> Reply:
        try:
            with localcontext() as context:
                context.prec = min(int(precision), MAX_DIGITS) + 10
                found = Decimal(value).ln() / Decimal(base).ln()
                context.prec = min(int(precision), MAX_DIGITS) + 3
                return {"result": Number(+found)}
        except (ArithmeticError, ValueError, TypeError) as error:
            return {"error": str(error)}

    def mean(self, numbers: list[float]) -> Reply:
        return _of_list(numbers, "calculate mean", lambda found: sum(found) / len(found))

    def standard_deviation(self, numbers: list[float]) -> Reply:
        return _of_list(numbers, "calculate standard deviation", _deviate)

    def si_unit_conversion(self, value: float, unit_in: str, unit_out: str) -> Reply:
        if not isinstance(value, int | float):
            return {"error": "Value must be a number"}
        if unit_in not in METRES or unit_out not in METRES:
            return {"error": f"Conversion from '{unit_in}' to '{unit_out}' is not supported"}
        try:
            return {"result": value * METRES[unit_in] * (1 / METRES[unit_out])}
        except OverflowError:
            return {"error": "Conversion resulted in a value too large to represent"}

    def imperial_si_conversion(self, value: float, unit_in: str, unit_out: str) -> Reply:
        if not isinstance(value, int | float):
            return {"error": "Value must be a number"}
        if unit_in == unit_out:
            return {"result": value}
        if (factor := FACTORS.get((unit_in, unit_out))) is None:
            return {"error": f"Conversion from '{unit_in}' to '{unit_out}' is not supported"}
        try:
            if unit_in == "fahrenheit":
                return {"result": (value - 32) * factor}
            return {"result": value * factor + (32 if unit_in == "celsius" else 0)}
        except OverflowError:
            return {"error": "Conversion resulted in a value too large to represent"}

    def add(self, a: float, b: float) -> Reply:
        return _try(lambda: a + b, TWO)

    def subtract(self, a: float, b: float) -> Reply:
        return _try(lambda: a - b, TWO)

    def multiply(self, a: float, b: float) -> Reply:
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            return {"error": TWO}
        return {"result": a * b}

    def divide(self, a: float, b: float) -> Reply:
        if b == 0:
            return {"error": "Cannot divide by zero"}
        return _try(lambda: a / b, TWO)

    def power(self, base: float, exponent: float) -> Reply:
        are_whole = isinstance(base, int) and isinstance(exponent, int)
        if are_whole and base.bit_length() * exponent > 4 * MAX_DIGITS:
            raise ValueError(
                f"Exceeds the limit ({MAX_DIGITS} digits) for integer string conversion"
            )
        return _try(lambda: base**exponent, TWO)

    def square_root(self, number: float, precision: int) -> Reply:
        try:
            if number < 0:
                return {"error": "Cannot calculate square root of a negative number"}
            with localcontext() as context:
                context.prec = min(precision, MAX_DIGITS)
                return {"result": Decimal(number).sqrt()}
        except (TypeError, InvalidOperation):
            return {
                "error": "Input must be a number or computation resulted in an invalid operation"
            }

    def absolute_value(self, number: float) -> Reply:
        return _try(lambda: abs(number), "Input must be a number")

    def round_number(self, number: float, decimal_places: int = 0) -> Reply:
        error = "First input must be a number, second input must be an integer"
        return _try(lambda: round(number, decimal_places), error)

    def percentage(self, part: float, whole: float) -> Reply:
        if whole == 0:
            return {"error": "Whole value cannot be zero"}
        return _try(lambda: (part / whole) * 100, TWO)

    def min_value(self, numbers: list[float]) -> Reply:
        return _of_list(numbers, "find minimum", min)

    def max_value(self, numbers: list[float]) -> Reply:
        return _of_list(numbers, "find maximum", max)

    def sum_values(self, numbers: list[float]) -> Reply:
        return _of_list(numbers, "calculate sum", sum)


class Number:
    """A logarithm, which is shown as `mpf('…')`, with its digits."""

    def __init__(self, value: Decimal) -> None:
        self.value = value

    def __repr__(self) -> str:
        digits = str(self.value)
        if "." in digits and "E" not in digits:
            digits = digits.rstrip("0") + "0" * digits.rstrip("0").endswith(".")
        return f"mpf('{digits}')"
