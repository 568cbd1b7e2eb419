"""One expected tool call, scored by three independent components.

A response may be well-formed and wrong, or correct and malformed. So each component is a metric,
for evaluation and for algorithms with several rewards.
"""

from typing import Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    function_calls,
    output_items,
)

THIRD = 1 / 3


class Weights(BaseModel):
    """Weight of each component in the reward; 1 for all of them is NeMo Gym's sum."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    correctness: float = Field(THIRD, description="Weight of the component correctness.")
    schema_valid: float = Field(THIRD, description="Weight of the component schema_valid.")
    format: float = Field(THIRD, description="Weight of the component format.")


class ExampleToolCallMultirewardConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    weights: Weights = Field(
        default_factory=Weights, description="Weight of each component in the reward."
    )


class ExpectedCall(BaseModel):
    """The expected call; additional arguments are allowed."""

    name: str
    arguments: JsonObject = {}


class CallRequest(VerifyRequest):
    expected_call: ExpectedCall


class ExampleToolCallMultireward(ResourcesServer):
    """The reward is the weighted sum of the components, each 0.0 or 1.0."""

    Config = ExampleToolCallMultirewardConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    async def verify(self, body: CallRequest) -> VerifyResponse:
        output = output_items(body.response)
        calls = function_calls(output)
        arguments = [_parse_arguments(call) for call in calls]
        has_text = any(item.get("type") == "message" for item in output)
        components = {
            "correctness": float(
                any(
                    _is_expected(body.expected_call, call, given)
                    for call, given in zip(calls, arguments, strict=True)
                )
            ),
            "schema_valid": float(bool(calls) and _is_complete(body, calls[0], arguments[0])),
            "format": float(len(calls) == 1 and not has_text),
        }
        weights = self.config.weights.model_dump()
        return body.scored(
            reward=sum(weights[name] * score for name, score in components.items()),
            reward_components=components,
            **components,
            predicted_calls=[
                {"name": call.get("name"), "arguments": given or {}}
                for call, given in zip(calls, arguments, strict=True)
            ],
        )


def _parse_arguments(call: JsonObject) -> JsonObject | None:
    """Parse the arguments of a call; None if they are not a JSON object."""
    try:
        found = orjson.loads(call.get("arguments") or "")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _is_expected(expected: ExpectedCall, call: JsonObject, given: JsonObject | None) -> bool:
    return call.get("name") == expected.name and all(
        (given or {}).get(name) == value for name, value in expected.arguments.items()
    )


def _is_complete(task: CallRequest, call: JsonObject, given: JsonObject | None) -> bool:
    """Whether the arguments have all required fields of the tool in the row."""
    tools = task.responses_create_params.get("tools") or ()
    required: list[Any] = next(
        (
            (tool.get("parameters") or {}).get("required") or []
            for tool in tools
            if tool.get("name") == call.get("name")
        ),
        [],
    )
    return given is not None and all(name in given for name in required)
