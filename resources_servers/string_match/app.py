"""Answers, compared as text: exactly, normalised, contained, by regular expression, or by degrees.

Rows, extraction and normalisation are NeMo Gym's. Regular expressions run in a process
that can be killed.
"""

import re
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, model_validator

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    TaskError,
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
"""Limit on the address space of a worker."""

Degrees = Literal["words", "sequence", "table"]
"""Modes of `closeness.py`."""

BY_DEGREES = frozenset(get_args(Degrees))


class StringMatchConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    near_number_reward: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Reward for a number that is wrong by about one per cent. NeMo Gym uses 0.98.",
    )
    extraction_mode: ExtractionMode | None = Field(
        None,
        description="extraction_mode of rows that have none. Default: regex if there is a pattern,"
        " else final_answer.",
    )
    extraction_pattern: str | None = Field(
        None,
        min_length=1,
        description="extraction_pattern of rows that have none, for extraction_mode regex.",
    )
    regex_timeout_s: float = Field(
        1.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="CPU seconds for a regular expression on one answer.",
    )
    comparison_timeout_s: float = Field(
        20.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="CPU seconds for a comparison by words, sequence or table.",
    )

    @model_validator(mode="after")
    def _can_extract(self) -> "StringMatchConfig":
        if self.extraction_pattern is not None:
            try:
                re.compile(self.extraction_pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(
                    f"extraction_pattern: is not a regular expression: {error}"
                ) from None
        return self


class StringMatchRequest(VerifyRequest):
    """A row. `metadata` does not affect the verdict."""

    expected_answer: str | list[str] | list[list[str]] | dict[str, dict[str, str]] = Field(
        min_length=1
    )
    extraction_mode: ExtractionMode | None = None
    extraction_pattern: str | None = Field(None, min_length=1)
    match_mode: Literal["normalised", "exact", "contains", "regex"] | Degrees = "normalised"
    required_prefix: str = ""
    case_sensitive: bool = False

    @property
    def answers(self) -> list[str]:
        """Accepted answers."""
        given = self.expected_answer
        return (
            [given] if isinstance(given, str) else [each for each in given if isinstance(each, str)]
        )

    @property
    def is_by_degrees(self) -> bool:
        return self.match_mode in BY_DEGREES

    @model_validator(mode="after")
    def _can_match(self) -> "StringMatchRequest":
        given, mode = self.expected_answer, self.match_mode
        is_table, is_spans = isinstance(given, dict), not self.answers and isinstance(given, list)
        if is_table != (mode == "table") or is_spans != (mode == "words"):
            raise ValueError(
                "expected_answer: match_mode table needs an object of objects, words a list of"
                " lists of texts, and any other mode a text or a list of texts"
            )
        if mode == "sequence" and not isinstance(given, str):
            raise ValueError("expected_answer: match_mode sequence needs one text")
        if not all(given):
            raise ValueError("expected_answer: an empty text cannot be matched")
        return self


class StringMatch(ResourcesServer):
    """Reward 1.0 if the extracted answer matches; `near_number_reward` for one nearly correct."""

    Config = StringMatchConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    def __init__(self, config: StringMatchConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._worker = WorkerPool(
            Path(__file__).with_name("answers.py"),
            "work",
            deadline_s=config.regex_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )
        self._comparing = WorkerPool(
            Path(__file__).with_name("closeness.py"),
            "compare",
            num_workers=2,
            deadline_s=config.comparison_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )

    def check_later(self, row: JsonObject) -> Awaitable[None] | None:
        body = StringMatchRequest.model_validate({"response": {}, **row})
        mode, pattern = self._extraction_of(body)
        if mode == "regex" and pattern is None:
            raise TaskError("extraction_mode: regex needs an extraction_pattern")
        checks = []
        if body.match_mode == "regex":
            checks.append(self._worker.call("search", body.answers, "", True))
        if body.extraction_pattern is not None:
            checks.append(self._worker.call("find_last", body.extraction_pattern, ""))
        return check_patterns(_await_all(checks)) if checks else None

    async def stop(self) -> None:
        await self._worker.close()
        await self._comparing.close()

    def _extraction_of(self, body: StringMatchRequest) -> tuple[ExtractionMode, str | None]:
        """Where the answer of a row is, and by which expression."""
        pattern = body.extraction_pattern or self.config.extraction_pattern
        default = "regex" if pattern else "final_answer"
        if body.extraction_mode is None and body.extraction_pattern:
            return "regex", pattern
        return body.extraction_mode or self.config.extraction_mode or default, pattern

    async def verify(self, body: StringMatchRequest) -> VerifyResponse:
        reward, timed_out, answer, figures = 0.0, False, None, {}
        text = output_text(body.response)[-TEXT_LIMIT:]
        mode, pattern = self._extraction_of(body)
        try:
            if mode == "regex":
                answer = await self._worker.call("find_last", pattern, text)
            else:
                answer = extract(text, mode)
            if answer is not None and body.match_mode == "regex":
                arguments = body.answers, answer, body.case_sensitive
                reward = float(await self._worker.call("search", *arguments))
            if body.is_by_degrees:
                figures = await self._compare_by_degrees(body, answer or "")
                reward = figures.pop("reward")
        except TimeoutError:
            timed_out = True
        if answer is not None and body.match_mode != "regex" and not body.is_by_degrees:
            near = self.config.near_number_reward
            reward = max(_compare(body, expected, answer, near) for expected in body.answers)
        return body.scored(
            reward=reward,
            expected_answer=body.expected_answer,
            extracted_answer=answer,
            **figures,
            **({"regex_timed_out": True} if timed_out else {}),
        )

    async def _compare_by_degrees(self, body: StringMatchRequest, answer: str) -> dict[str, float]:
        arguments = body.match_mode, body.expected_answer, answer, body.required_prefix
        return await self._comparing.call(*arguments)


async def _await_all(calls: list[Coroutine[Any, Any, Any]]) -> None:
    for call in calls:
        await call


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
