"""What can be set while a collection runs: each knob with its name, its values and its effect."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...config.keys import Parallelism
from ..run import Run

A_PERSON = "a person"
"""Why nothing starts while a run is paused."""


@dataclass(frozen=True, slots=True)
class Knob:
    """`parse` makes the value that `set` takes of a JSON value; ValueError says what is wrong.
    `read` returns the present value as JSON."""

    name: str
    parse: Callable[[Any], Any]
    read: Callable[[], Any]
    set: Callable[[Any], object]


def knobs_of(run: Run) -> dict[str, Knob]:
    """The knobs that every run has."""
    limits, parallel = run.limits, run.parallel

    def set_parallel(asked: Parallelism) -> None:
        parallel.set(asked)
        run.schedule.refresh()

    def set_paused(is_paused: bool) -> None:
        (run.schedule.holds.add if is_paused else run.schedule.holds.discard)(A_PERSON)
        run.schedule.refresh()

    def refreshing(act: Callable[[Any], object]) -> Callable[[Any], object]:
        def set_it(value: Any) -> None:
            act(value)
            run.schedule.refresh()

        return set_it

    found = [
        Knob("parallelism", parse_parallelism, lambda: parallel.asked.spell(), set_parallel),
        Knob("paused", parse_switch, lambda: A_PERSON in run.schedule.holds, set_paused),
        Knob(
            "max_cost_usd",
            parse_amount,
            lambda: limits.budget.max_cost_usd,
            refreshing(limits.set_money),
        ),
        Knob(
            "max_total_tokens",
            parse_number,
            lambda: limits.budget.max_total_tokens,
            refreshing(limits.set_tokens),
        ),
        Knob("max_minutes", parse_amount, lambda: limits.max_minutes, limits.set_minutes),
    ]
    return {knob.name: knob for knob in found}


def parse_parallelism(value: Any) -> Parallelism:
    is_digits = isinstance(value, str) and value.isascii() and value.isdecimal()
    return Parallelism.parse(int(value) if is_digits else value)


def parse_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {value!r}")
    return value


def parse_amount(value: Any) -> float | None:
    """A number above 0; None: no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, or null for no limit, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"must be above 0, got {value:g}")
    return float(value)


def parse_number(value: Any) -> int | None:
    """A whole number above 0; None: no limit."""
    amount = parse_amount(value)
    if amount is not None and not amount.is_integer():
        raise ValueError(f"expected a whole number, got {amount:g}")
    return None if amount is None else int(amount)
