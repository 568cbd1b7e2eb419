"""What the tiny model is taught and tested on: arithmetic, multiple choice over numbers, a tool.

A problem is known by its numbers, in whatever order. An eighth of all number sets is held out by
a hash: training draws from the rest, the task files from the eighth, so that no phrasing, operation
or skill can show in training what is asked in a test.
"""

import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

HELD_OUT_OF = 8
"""One number set in so many is never trained on: a few hundred pairs below 100 to test with."""

Skill = Literal["arithmetic", "multiple_choice", "tool"]
SKILLS: tuple[Skill, ...] = ("arithmetic", "multiple_choice", "tool")

LETTERS = "ABCD"

ADDITION = (
    "What is {a}+{b}?",
    "What is {a} + {b}?",
    "Compute {a}+{b}.",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
)
SUBTRACTION = (
    "What is {a}-{b}?",
    "What is {a} - {b}?",
    "Compute {a}-{b}.",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
)
CHOICE = (
    "Which number is {which}?",
    "Which of these numbers is the {which}?",
    "Pick the {which} number.",
)
LAYOUTS = (" {letter}) {number}", "\n{letter}) {number}", "\n{letter}. {number}")
WITH_TOOL = (
    "Use the tool: {a}+{b}",
    "Use the tool to compute {a}+{b}.",
    "Use the tool to add {a} and {b}.",
    "What is {a}+{b}? Use the tool.",
    *ADDITION,
)
BOXED = "Put the answer in \\boxed{}."


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and all of its right response."""

    skill: Skill
    numbers: tuple[int, ...]
    """As the question names them."""
    question: str
    value: str
    """The right number or letter."""
    working: str = ""
    """What is written down before it."""
    is_boxed: bool = False
    """Whether the answer is wanted in a box."""

    @property
    def text(self) -> str:
        separator = "\n" if "\n" in self.question else " "
        return f"{self.question}{separator}{BOXED}" if self.is_boxed else self.question

    @property
    def level(self) -> int:
        """Digits of the largest number."""
        return len(str(max(self.numbers)))

    def answer(self, value: str) -> str:
        """What is to be said last, if the tool or the working came to this value."""
        return f"\\boxed{{{value}}}" if self.is_boxed else f"Answer: {value}"

    @property
    def response(self) -> str:
        """The whole right response of a problem without a tool."""
        return f"{self.working}. {self.answer(self.value)}"


def is_held_out(numbers: Sequence[int]) -> bool:
    """Whether these numbers, in any order, belong to tests and never to training."""
    return zlib.crc32(",".join(map(str, sorted(numbers))).encode()) % HELD_OUT_OF == 0


def draw(
    rng: random.Random, skill: Skill, *, held_out: bool, levels: Sequence[int] = (1, 2, 3)
) -> Problem:
    """A problem of one side of the split, and of one of these levels."""
    while True:
        problem = DRAW[skill](rng)
        if problem.level in levels and is_held_out(problem.numbers) == held_out:
            return problem


def _arithmetic(rng: random.Random) -> Problem:
    a, b = _pair(rng, weights=(3, 8, 7))
    if rng.random() < 0.5:
        phrasing, value, working = rng.choice(ADDITION), a + b, sum_working(a, b)
    else:
        a, b = max(a, b), min(a, b)
        phrasing, value, working = rng.choice(SUBTRACTION), a - b, difference_working(a, b)
    question = phrasing.format(a=a, b=b)
    return Problem("arithmetic", (a, b), question, str(value), working, rng.random() < 0.5)


def sum_working(a: int, b: int) -> str:
    """Column by column from the right, with what is carried: 37 and 45 are 7+5=12, 3+4+1=8."""
    columns, carry = [], 0
    for x, y in _columns(a, b):
        total = x + y + carry
        columns.append(f"{x}+{y}{'+1' * carry}={total}")
        carry = total // 10
    return ", ".join(columns)


def difference_working(a: int, b: int) -> str:
    """The same with what is borrowed: 82 less 35 is 12-5=7, 8-3-1=4."""
    columns, borrow = [], 0
    for x, y in _columns(a, b):
        borrows = x < y + borrow
        left = x + 10 * borrows
        columns.append(f"{left}-{y}{'-1' * borrow}={left - y - borrow}")
        borrow = int(borrows)
    return ", ".join(columns)


def _columns(a: int, b: int) -> list[tuple[int, int]]:
    width = max(len(str(a)), len(str(b)))
    pairs = zip(f"{a:0{width}}", f"{b:0{width}}", strict=True)
    return [(int(x), int(y)) for x, y in pairs][::-1]


def _multiple_choice(rng: random.Random) -> Problem:
    size = 10 ** rng.choice((1, 2, 3))
    width = size // 10 if size > 10 and rng.random() < 0.3 else size  # if less, they are close
    low = rng.randrange(size - width + 1)
    numbers = tuple(rng.sample(range(low, low + width), 4))
    is_largest = rng.random() < 0.5
    layout = rng.choice(LAYOUTS)
    question = rng.choice(CHOICE).format(which="largest" if is_largest else "smallest")
    return choice(question, layout, numbers, is_largest=is_largest, is_boxed=rng.random() < 0.5)


def choice(
    question: str, layout: str, numbers: tuple[int, ...], *, is_largest: bool, is_boxed: bool
) -> Problem:
    question += "".join(
        layout.format(letter=letter, number=number)
        for letter, number in zip(LETTERS, numbers, strict=True)
    )
    right = max(numbers) if is_largest else min(numbers)
    gold = LETTERS[numbers.index(right)]
    working = choice_working(numbers, is_largest=is_largest)
    return Problem("multiple_choice", numbers, question, gold, working, is_boxed)


def choice_working(numbers: Sequence[int], *, is_largest: bool) -> str:
    """Two by two: the largest of 3, 5, 4 is max(A:3,B:5)=B:5, max(B:5,C:4)=B:5."""
    better = max if is_largest else min
    best, *others = zip(numbers, LETTERS, strict=True)
    comparisons = []
    for other in others:
        names = [f"{letter}:{number}" for number, letter in (best, other)]
        best = better(best, other)
        comparisons.append(f"{better.__name__}({','.join(names)})={best[1]}:{best[0]}")
    return ", ".join(comparisons)


def _tool(rng: random.Random) -> Problem:
    a, b = _pair(rng, weights=(2, 4, 4))
    question = rng.choice(WITH_TOOL).format(a=a, b=b)
    return Problem("tool", (a, b), question, str(a + b), is_boxed=rng.random() < 0.3)


DRAW: dict[Skill, Callable[[random.Random], Problem]] = {
    "arithmetic": _arithmetic,
    "multiple_choice": _multiple_choice,
    "tool": _tool,
}


def _pair(rng: random.Random, weights: Sequence[int]) -> tuple[int, int]:
    """Two numbers, each of 1, 2, … digits as the weights say."""
    first, second = rng.choices(range(1, len(weights) + 1), weights, k=2)
    return rng.randrange(10**first), rng.randrange(10**second)


def add_tool(rng: random.Random | None = None) -> dict[str, Any]:
    """The tool as a chat template is given it; with `rng` one of the ways servers write it."""
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "additionalProperties": False,
        "required": ["a", "b"],
    }
    description = "Add two integers."
    function: dict[str, Any] = {"name": "add", "description": description}
    function["parameters"] = parameters
    if rng is None:
        return {"type": "function", "function": function}
    function["description"] = rng.choice(
        (description, "Add two integers", "The sum of two integers.", "Add a and b.")
    )
    if rng.random() < 0.5:
        del parameters["additionalProperties"]
    strict = rng.choice(("absent", True, False, None))
    if strict != "absent":
        function["strict"] = strict
    return {"type": "function", "function": function}


def call_text(a: int, b: int) -> str:
    call = json.dumps({"name": "add", "arguments": {"a": a, "b": b}})
    return f"<tool_call>\n{call}\n</tool_call>"
