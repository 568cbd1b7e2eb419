"""Short answers, compared as text: exactly, normalised, contained, or by regular expression.

Rows, extraction and normalisation are NeMo Gym's. A row's regular expression runs in a process that
can be killed.
"""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

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

from .answers import ExtractionMode, collapse, extract, grade

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are searched for the answer."""

WORKER_MEMORY_MB = 1024
"""Limit on the address space of the worker for patterns of rows."""


class StringMatchConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    near_number_reward: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Reward of a number within about one per cent of the expected one; NeMo Gym's"
        " is 0.98.",
    )
    regex_timeout_s: float = Field(
        1.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="CPU seconds for a row's regular expression on one answer.",
    )


class StringMatchRequest(VerifyRequest):
    """A row. `metadata` does not affect the verdict."""

    expected_answer: str | list[str] = Field(min_length=1)
    extraction_mode: ExtractionMode = "final_answer"
    match_mode: Literal["normalised", "exact", "contains", "regex"] = "normalised"
    case_sensitive: bool = False

    @property
    def answers(self) -> list[str]:
        """Accepted answers."""
        given = self.expected_answer
        return [given] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _can_match(self) -> "StringMatchRequest":
        if not all(self.answers):
            raise ValueError("expected_answer: an empty text cannot be matched")
        return self


class StringMatch(ResourcesServer):
    """Reward 1.0 if the extracted answer matches; `near_number_reward` for one nearly correct."""

    Config = StringMatchConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    def __init__(self, config: StringMatchConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._regex_worker = WorkerPool(
            Path(__file__).with_name("answers.py"),
            "search",
            deadline_s=config.regex_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )

    def check_later(self, row: JsonObject) -> Awaitable[None] | None:
        if row.get("match_mode") != "regex":
            return None
        patterns = StringMatchRequest.model_validate({"response": {}, **row}).answers
        return check_patterns(self._regex_worker.call(patterns, "", True))

    async def stop(self) -> None:
        await self._regex_worker.close()

    async def verify(self, body: StringMatchRequest) -> VerifyResponse:
        answer = extract(output_text(body.response)[-TEXT_LIMIT:], body.extraction_mode)
        reward, timed_out = 0.0, False
        if answer is not None and body.match_mode != "regex":
            near = self.config.near_number_reward
            reward = max(_compare(body, expected, answer, near) for expected in body.answers)
        elif answer is not None:
            try:
                arguments = body.answers, answer, body.case_sensitive
                reward = float(await self._regex_worker.call(*arguments))
            except TimeoutError:
                timed_out = True
        return body.scored(
            reward=reward,
            expected_answer=body.expected_answer,
            extracted_answer=answer,
            **({"regex_timed_out": True} if timed_out else {}),
        )


def _compare(task: StringMatchRequest, expected: str, answer: str, near_reward: float) -> float:
    if task.match_mode == "normalised" and not task.case_sensitive:
        return grade(expected, answer, near_reward)
    if task.match_mode == "contains":
        wanted, given = (
            collapse(text, case_sensitive=task.case_sensitive) for text in (expected, answer)
        )
        return float(wanted in given)
    expected, answer = expected.strip(), answer.strip()
    if not task.case_sensitive:
        expected, answer = expected.lower(), answer.lower()
    return float(expected == answer)
