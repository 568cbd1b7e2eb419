"""Unit tests of a row, in the format of LiveCodeBench and NeMo Gym."""

import asyncio
import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollout_kit import TaskError
from rollout_kit.serving.sandbox.limits import read_integer


class UnitTests(BaseModel):
    """Lists `inputs` and `outputs`, or both `packed` as base64 of zlib of JSON; or a `program` that
    calls the function `fn_name`. `preamble` is the code that was asked to be completed."""

    inputs: list[str] | None = None
    outputs: list[str] | None = None
    packed: str | None = None
    program: str | None = None
    preamble: str = ""
    fn_name: str | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.program is not None:
            if not self.fn_name or self.inputs or self.outputs or self.packed:
                raise ValueError("a 'program' needs fn_name, and no other tests")
        elif self.packed is None:
            _check(self.inputs, self.outputs, self.fn_name)
        return self


class Metadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    unit_tests: UnitTests
    difficulty: str | None = Field(None)


@dataclass(frozen=True, slots=True)
class Case:
    """One test: its input and expected output, or arguments and expected value."""

    input_text: str
    expected_text: str
    function: str | None = None
    arguments: list[Any] | None = None
    expected: Any = None

    @property
    def stdin(self) -> str:
        return "" if self.function else self.input_text


async def read_cases(tests: UnitTests) -> list[Case]:
    """Return the tests in order; raise TaskError if `packed` is invalid."""
    if tests.packed is None:
        return _build_cases(tests.inputs or [], tests.outputs or [], tests.fn_name)
    return await asyncio.to_thread(_unpack, tests.packed, tests.fn_name)


def _unpack(packed: str, function: str | None) -> list[Case]:
    try:
        found = json.loads(zlib.decompress(base64.b64decode(packed)))
        inputs, outputs = found["inputs"], found["outputs"]
        _check(inputs, outputs, function)
    except (ValueError, zlib.error, KeyError, TypeError) as error:
        raise TaskError(f"unit_tests.packed has no tests: {error!r}") from None
    return _build_cases(inputs, outputs, function)


def _check(inputs: list[str] | None, outputs: list[str] | None, function: str | None) -> None:
    if not inputs or outputs is None or len(inputs) != len(outputs):
        raise ValueError("needs as many 'outputs' as 'inputs', and at least one")
    if function:
        _build_cases(inputs, outputs, function)


def _build_cases(inputs: list[str], outputs: list[str], function: str | None) -> list[Case]:
    if not function:
        return [Case(*pair) for pair in zip(inputs, outputs, strict=True)]
    cases = []
    for number, (given, wanted) in enumerate(zip(inputs, outputs, strict=True)):
        try:
            arguments = [json.loads(line) for line in given.split("\n")]
            expected = json.loads(wanted, parse_int=read_integer)
            cases.append(Case(given, wanted, function, arguments, expected))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"test {number} of a function must be JSON, one argument per line: {error}"
            ) from None
    return cases
