"""A calculator: the model calls the tool `add` and answers with its result."""

import re
from typing import ClassVar

from pydantic import ConfigDict

from rollout_kit import (
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    function_calls,
    output_items,
    output_text,
    tool,
)

WHOLE_NUMBER = re.compile(r"-?\d+")

MAX_DIGITS = 4_300
"""Python refuses to parse longer numbers."""


class CalculatorConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")


class CalculatorVerifyRequest(VerifyRequest):
    """A row: the request and the correct number."""

    expected_answer: int


class Calculator(ResourcesServer):
    """Reward 1.0 if the last integer of the answer is `expected_answer`, else 0.0."""

    Config = CalculatorConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    async def verify(self, body: CalculatorVerifyRequest) -> VerifyResponse:
        numbers = WHOLE_NUMBER.findall(output_text(body.response))
        calls = function_calls(output_items(body.response))
        last = numbers[-1] if numbers else None
        is_readable = last is not None and len(last) <= MAX_DIGITS
        return body.scored(
            reward=float(is_readable and int(last) == body.expected_answer),
            extracted_answer=last,
            tool_was_called=any(call.get("name") == "add" for call in calls),
        )
