"""The tests of a row, as LiveCodeBench and NeMo Gym write them."""

import asyncio
import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollout_kit import TaskError


class UnitTests(BaseModel):
    """`inputs` and `outputs` side by side, or both as one text: base64 of zlib of JSON."""

    inputs: list[str] | None = None
    outputs: list[str] | None = None
    packed: str | None = None
    fn_name: str | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.packed is None:
            _check(self.inputs, self.outputs, self.fn_name)
        return self


class Metadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    unit_tests: UnitTests
    difficulty: str | None = Field(None)


@dataclass(frozen=True, slots=True)
class Case:
    """One test: what goes in, and what must come out (a value where a function is called)."""

    input_text: str
    expected_text: str
    function: str | None = None
    arguments: list[Any] | None = None
    expected: Any = None

    @property
    def stdin(self) -> str:
        return "" if self.function else self.input_text


async def cases_of(tests: UnitTests) -> list[Case]:
    """The row's tests in order; TaskError where packed ones are none."""
    if tests.packed is None:
        return _cases(tests.inputs or [], tests.outputs or [], tests.fn_name)
    return await asyncio.to_thread(_unpacked, tests.packed, tests.fn_name)


def _unpacked(packed: str, function: str | None) -> list[Case]:
    try:
        found = json.loads(zlib.decompress(base64.b64decode(packed)))
        inputs, outputs = found["inputs"], found["outputs"]
        _check(inputs, outputs, function)
    except (ValueError, zlib.error, KeyError, TypeError) as error:
        raise TaskError(f"verifier_metadata.unit_tests.packed holds no tests: {error!r}") from None
    return _cases(inputs, outputs, function)


def _check(inputs: list[str] | None, outputs: list[str] | None, function: str | None) -> None:
    if not inputs or outputs is None or len(inputs) != len(outputs):
        raise ValueError("needs as many 'outputs' as 'inputs', and one at least")
    if function:
        _cases(inputs, outputs, function)


def _cases(inputs: list[str], outputs: list[str], function: str | None) -> list[Case]:
    if not function:
        return [Case(*pair) for pair in zip(inputs, outputs, strict=True)]
    cases = []
    for number, (given, wanted) in enumerate(zip(inputs, outputs, strict=True)):
        try:
            arguments = [json.loads(line) for line in given.split("\n")]
            cases.append(Case(given, wanted, function, arguments, json.loads(wanted)))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"test {number} of a function must be JSON, an argument a line: {error}"
            ) from None
    return cases
