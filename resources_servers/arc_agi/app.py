"""Grids of ARC-AGI, with up to two attempts for each test input.

The answer is the last JSON in the response that has the form of attempts. A row of NeMo Gym asks
for one grid in `\\boxed{}`, and the first one counts. An answer is only parsed.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field, model_validator

from rollout_kit import (
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    RunRequest,
    VerifyRequest,
    VerifyResponse,
    output_text,
)

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are read, because the answer is at the end."""

MAX_SIDE = 100
"""Rows and columns of the largest grid that is read; those of ARC-AGI have at most 30."""

MAX_TRIES = 200
"""Lists and objects that are parsed, from the end."""

BRACKET, PAIRS = re.compile(r"[\[\]{}]"), {"[": "]", "{": "}"}

BOXED = "\\boxed{"

Cell = Annotated[int, Field(ge=0, le=9, strict=True)]
Grid = list[list[int]]


class ArcAgiConfig(ResourcesServerConfig):
    max_attempts: int = Field(2, ge=1, description="Number of attempts at a test input that count.")


class ArcAgiTask(RunRequest):
    """A row: the output grids of its test inputs, in their order; or that of its only one, as NeMo
    Gym writes it."""

    expected_outputs: list[list[list[Cell]]] = Field([])
    expected_output: list[list[Cell]] = Field([])

    @model_validator(mode="after")
    def check_grids(self) -> "ArcAgiTask":
        if bool(self.expected_outputs) == bool(self.expected_output):
            raise ValueError("give either expected_outputs, a list of grids, or expected_output")
        return self


class ArcAgiRequest(ArcAgiTask, VerifyRequest):
    """A row with its response."""


class ArcAgi(ResourcesServer):
    """The reward is the share of the test inputs for which an attempt is the expected grid."""

    Config = ArcAgiConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    async def seed_session(self, body: ArcAgiTask) -> dict[str, Any]:
        """Refuse rows without grids before the model is called."""
        return {}

    async def verify(self, body: ArcAgiRequest) -> VerifyResponse:
        text = output_text(body.response)[-TEXT_LIMIT:]
        wanted = body.expected_outputs or [body.expected_output]
        is_boxed = not body.expected_outputs
        attempts = read_boxed(text) if is_boxed else read_attempts(text, len(wanted))
        taken = [each[: self.config.max_attempts] for each in attempts or [[]] * len(wanted)]
        solved = [grid in tries for grid, tries in zip(wanted, taken, strict=True)]
        return body.scored(
            reward=sum(solved) / len(solved),
            solved=float(all(solved)),
            num_attempts=sum(map(len, taken)),
            has_answer=float(attempts is not None),
            solved_inputs=solved,
        )


def read_attempts(text: str, num_inputs: int) -> list[list[Grid]] | None:
    """The attempts at each test input in the last JSON of a text that has them; None if there is
    none."""
    for _, value in find_json(text):
        attempts = _as_attempts(value, num_inputs)
        if attempts is not None:
            return attempts
    return None


def read_boxed(text: str) -> list[list[Grid]] | None:
    """The first grid in `\\boxed{}` as the only attempt, or the first grid of a text without one;
    None if there is none."""
    grids = [(start, value) for start, value in find_json(text) if is_grid(value)][::-1]
    boxed = [value for start, value in grids if text[:start].rstrip().endswith(BOXED)]
    found = boxed or [value for _, value in grids]
    return [found[:1]] if found else None


def find_json(text: str) -> Iterator[tuple[int, Any]]:
    """The lists and objects in a text with their places, the last first; what is inside another one
    is none."""
    spans, opened = list[tuple[int, int]](), list[re.Match[str]]()
    for found in BRACKET.finditer(text):
        if found[0] in PAIRS:
            opened.append(found)
        elif opened and PAIRS[opened[-1][0]] == found[0]:
            spans.append((-found.end(), opened.pop().start()))
        else:
            opened.clear()
    left, tries = len(text), 0
    for end, start in sorted(spans):
        if start < left and tries < MAX_TRIES:
            tries += 1
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(text[start:-end])
                left = start
                yield start, value


def _as_attempts(value: Any, num_inputs: int) -> list[list[Grid]] | None:
    """The attempts that a JSON value has: a list of objects with attempt_1 and attempt_2, a list of
    grids, or the same without the list if there is one test input."""
    if num_inputs == 1 and (isinstance(value, dict) or is_grid(value)):
        value = [value]
    if not isinstance(value, list) or len(value) != num_inputs:
        return None
    found = []
    for each in value:
        tries = [each[key] for key in sorted(each)] if _has_attempts(each) else [each]
        if not tries or not all(map(is_grid, tries)):
            return None
        found.append(tries)
    return found


def _has_attempts(value: Any) -> bool:
    return isinstance(value, dict) and all(key.startswith("attempt_") for key in value)


def is_grid(value: Any) -> bool:
    """Whether a JSON value is a list of rows of integers, all of one length."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_SIDE:
        return False
    if not all(isinstance(row, list) and 0 < len(row) <= MAX_SIDE for row in value):
        return False
    return len({len(row) for row in value}) == 1 and all(
        type(cell) is int for row in value for cell in row
    )
