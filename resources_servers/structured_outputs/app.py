"""Structured outputs: JSON, YAML, XML, TOML or CSV that must fit a JSON schema.

The answer is the text of the response, or the arguments of a tool call. It is parsed and validated
in worker processes that are killed at a deadline, because neither the schema's patterns nor the
answer are trusted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    Reverify,
    RunRequest,
    TaskError,
    VerifyRequest,
    VerifyResponse,
    VerifyWorkersConfig,
    WorkerPool,
    content_texts,
    function_calls,
    output_items,
)

WORKER_MEMORY_MB = 1024
"""Limit on the address space of a worker."""

Verdict = tuple[str | None, str | None]
"""Kind and text of the error."""


class StructuredOutputsConfig(VerifyWorkersConfig):
    xml_coerce_types: bool = Field(
        True, description="Convert the text of XML to the types in the schema."
    )


class StructuredTask(RunRequest):
    """A row. `problem_type` and other fields do not affect the verdict."""

    schema_str: str
    schema_type: Literal["json", "yaml", "xml", "toml", "csv"] = "json"
    response_mode: Literal["text", "tool_call"] | None = "text"
    tool_name: str | None = None
    tool_payload_key: str | None = None


class StructuredRequest(StructuredTask, VerifyRequest):
    """A row with its response."""


class StructuredOutputs(ResourcesServer):
    """Reward 1.0 if the answer can be parsed and fits the schema, else 0.0."""

    Config = StructuredOutputsConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    needs: ClassVar[Mapping[str, str]] = {
        "jsonschema": "rollout-kit[structured-outputs]",
        "xmltodict": "rollout-kit[structured-outputs]",
        "yaml": "rollout-kit[structured-outputs]",
    }

    def __init__(self, config: StructuredOutputsConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._workers = WorkerPool(
            Path(__file__).with_name("formats.py"),
            "examine",
            num_workers=config.num_verify_workers,
            deadline_s=config.verify_timeout_s,
            wall_deadline_s=config.verify_wall_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )

    async def start(self) -> None:
        self.check_needs()
        await self._workers.start()

    async def stop(self) -> None:
        await self._workers.close()

    async def seed_session(self, body: StructuredTask) -> JsonObject:
        """Refuse invalid schemas before the model is called."""
        _, problem = await self._examine(body, None)
        if problem:
            raise TaskError(f"the verifier cannot take this row: schema_str: {problem}")
        return {}

    async def verify(self, body: StructuredRequest) -> VerifyResponse:
        if body.response_mode == "tool_call":
            said, verdict = _read_arguments(body)
        else:
            said = _read_text(body.response)
            verdict = None if said.strip() else ("empty_response", "the response has no text")
        kind, message = verdict or await self._examine(body, said)
        return body.scored(reward=float(kind is None), error_type=kind, error_message=message)

    async def _examine(self, task: StructuredTask, said: str | None) -> Verdict:
        is_call = task.response_mode == "tool_call"
        format = f"tool_call:{task.tool_payload_key or ''}" if is_call else task.schema_type
        try:
            return tuple(
                await self._workers.call(
                    task.schema_str, format, self.config.xml_coerce_types, said
                )
            )
        except TimeoutError as error:
            return "timeout", str(error)


def _read_text(response: JsonObject) -> str:
    messages = [item for item in output_items(response) if item.get("type") == "message"]
    return "".join(text for item in messages for text in content_texts(item.get("content")))


def _read_arguments(body: StructuredRequest) -> tuple[str, Verdict | None]:
    """Return the arguments of the only call; without one of the row's tool, the verdict."""
    if body.response.get("error"):
        return "", ("api_error", str(body.response["error"])[:200])
    calls = function_calls(output_items(body.response))
    if not calls:
        return "", ("missing_tool_call", "the response has no tool call")
    names = ", ".join(str(call.get("name")) for call in calls)[:200]
    if len(calls) > 1:
        return "", ("multiple_tool_calls", f"expected one call, not {names}")
    if body.tool_name not in (None, "", names):
        return "", ("wrong_tool_name", f"expected '{body.tool_name}', not {names}")
    arguments = calls[0].get("arguments") or ""
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(), None
