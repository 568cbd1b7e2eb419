"""Multiple choice, verified by the letter in the response, with NeMo Gym's rows and rules.

A row's own `output_regex` runs in a process that can be killed, because a pattern from a dataset
may take forever.
"""

from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, field_validator

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    WorkerPool,
    output_text,
)
from rollout_kit.serving.service import OPERATIONAL
from rollout_kit.serving.verify_workers import check_patterns

from .grading import GradingMode, Options, extract, read_patterns, read_prefix

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are read, because the answer is at the end and
responses can be megabytes long."""

Text = Annotated[str, Field(min_length=1)]

WORKER_MEMORY_MB = 1024
"""Limit on the address space of the worker for patterns of rows."""


class McqaConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    grading_mode: GradingMode | None = Field(
        None, description="Overrides the grading_mode of every row."
    )
    regex_timeout_s: float = Field(
        1.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="CPU seconds for the output_regex of a row on one response.",
    )


class McqaVerifyRequest(VerifyRequest):
    """A multiple-choice row. `metadata` and `uuid` do not affect the verdict."""

    options: Options | None = None
    expected_answer: Text | Annotated[list[str], Field(min_length=1)]
    """The letter, or all letters that are right."""
    grading_mode: GradingMode = "strict_single_letter_boxed"
    template_metadata: JsonObject | None = None
    uuid: str | None = None
    metadata: JsonObject | None = None

    @field_validator("template_metadata")
    @classmethod
    def _holds_texts(cls, value: JsonObject | None) -> JsonObject | None:
        read_patterns(value)
        read_prefix(value)
        return value


class Mcqa(ResourcesServer):
    """Reward 1.0 if the extracted letter is `expected_answer`, else 0.0."""

    Config = McqaConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    def __init__(self, config: McqaConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._regex_worker = WorkerPool(
            Path(__file__).with_name("grading.py"),
            "match_patterns",
            deadline_s=config.regex_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )

    def check_later(self, row: JsonObject) -> Awaitable[None] | None:
        patterns = read_patterns(row.get("template_metadata"))
        return check_patterns(self._regex_worker.call(patterns, "", [])) if patterns else None

    async def stop(self) -> None:
        await self._regex_worker.close()

    async def verify(self, body: McqaVerifyRequest) -> VerifyResponse:
        text = output_text(body.response)[-TEXT_LIMIT:].strip()
        given = body.expected_answer
        expected = [each.strip().upper() for each in ([given] if isinstance(given, str) else given)]
        options = body.options or []
        extracted, timed_out = None, False
        if text and (patterns := read_patterns(body.template_metadata)):
            try:
                extracted = await self._regex_worker.call(patterns, text, options)
            except TimeoutError:
                timed_out = True
        if extracted is None:
            mode = self.config.grading_mode or body.grading_mode
            extracted = extract(text, options, mode, read_prefix(body.template_metadata))
        return body.scored(
            reward=float(extracted in expected),
            extracted_answer=extracted,
            expected_answer=expected[0] if isinstance(given, str) else expected,
            **({"regex_timed_out": True} if timed_out else {}),
        )
