"""Free-text answers, compared with the expected one by a judge, with NeMo Gym's rows and rules.

The judge is not asked about a missing answer, or about one that is literally the expected one.
"""

from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, field_validator, model_validator

from rollout_kit import (
    Evaluation,
    JsonObject,
    Judge,
    JudgeConfig,
    ResourcesServer,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    WorkerPool,
    content_texts,
    output_items,
)
from rollout_kit.serving.judge import issue_of, question_of
from rollout_kit.serving.service import OPERATIONAL, ServerRef
from rollout_kit.serving.verify_workers import check_patterns

from .extraction import check

HERE = Path(__file__).parent

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are read."""

WORKER_MEMORY_MB = 1024
"""Limit on the address space of the worker for patterns of rows."""


class EquivalenceConfig(JudgeConfig):
    model_config = ConfigDict(extra="forbid")

    judge_model_server: ServerRef | None = Field(
        ServerRef(type="responses_api_models", name="policy_model"),
        description="The model server that judges, preferably not the policy model.",
    )
    question_extract_regex: str | None = Field(
        None,
        description="Regular expression that finds the question in the last user message. The last"
        " match counts.",
    )
    response_extract_regex: str | None = Field(
        None,
        description="Regular expression that finds the answer in the last assistant message. The"
        " last match counts.",
    )
    msg_extraction_failure: str = Field(
        "[NO VALID ANSWER EXTRACTED]", description="Text for the judge if a regex finds no answer."
    )
    check_twice_swap: bool = Field(
        False, description="If the judge finds two answers equal, ask again in the other order."
    )
    reward_if_swap_fails: float = Field(
        0.0, description="Reward if the judge finds the answers equal in only one order."
    )
    use_per_record_regex: bool = Field(
        True, description="Use the template_metadata.output_regex of a row to find the answer."
    )
    extraction_length_threshold: int | None = Field(
        120,
        description="If the expected answer is longer than this, judge the whole response instead"
        " of the match of the row's regex.",
    )
    check_full_generation_on_fail: bool = Field(
        True, description="Judge the whole response if the match of the row's regex is not equal."
    )
    reward_if_full_generation_succeeds: float = Field(
        0.5, description="Reward if only the whole response is equal."
    )
    regex_timeout_s: float = Field(
        1.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="CPU seconds for a regex on one text.",
    )

    @field_validator("question_extract_regex", "response_extract_regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        check(value or "")
        return value


class EquivalenceRequest(VerifyRequest):
    """A row. Without `expected_answer`, `metadata.expected_answer` is used."""

    expected_answer: str | int | float | None = None
    template_metadata: JsonObject | None = None
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> "EquivalenceRequest":
        if not self.expected:
            raise ValueError("expected_answer is missing")
        _ = self.regex
        return self

    @property
    def expected(self) -> str:
        given = self.expected_answer
        if given in (None, ""):
            given = (self.metadata or {}).get("expected_answer")
        return "" if given is None else str(given)

    @property
    def regex(self) -> str | None:
        given = (self.template_metadata or {}).get("output_regex")
        if given is not None and not isinstance(given, str):
            raise ValueError(f"output_regex must be text, not {given!r:.80}")
        return given or None


class EquivalenceLlmJudge(ResourcesServer):
    """Reward 1.0 if the judge finds the answer equal to `expected_answer`."""

    Config = EquivalenceConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    measured: ClassVar[frozenset[str]] = frozenset({"judge_evaluations"})
    """Outputs of a judge differ between calls."""

    def __init__(self, config: EquivalenceConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._judge = Judge(config, peers, name, HERE)
        self._regex_worker = WorkerPool(
            HERE / "extraction.py",
            "find_last",
            deadline_s=config.regex_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )

    def check_later(self, row: JsonObject) -> Awaitable[None] | None:
        regex = EquivalenceRequest.model_validate({"response": {}, **row}).regex
        return check_patterns(self._regex_worker.call(regex, "")) if regex else None

    async def stop(self) -> None:
        await self._regex_worker.close()

    async def verify(self, body: EquivalenceRequest) -> VerifyResponse:
        config, expected = self.config, body.expected
        whole = _read_last_message(body.response)[-TEXT_LIMIT:].strip()
        row_regex = body.regex if config.use_per_record_regex else None
        limit = config.extraction_length_threshold
        is_long = bool(row_regex) and limit is not None and len(expected) > limit
        regex = None if is_long else row_regex or config.response_extract_regex
        answer = await self._extract(regex, whole)
        if not whole or _are_equal(answer, expected):
            return self._score(body, float(bool(whole)), [])
        question = question_of(body.responses_create_params)
        question = await self._extract(config.question_extract_regex, question)
        first = await self._judge.compare(question, expected, answer)
        if not first.equal:
            if is_long or not row_regex or not config.check_full_generation_on_fail:
                return self._score(body, 0.0, [first])
            again = await self._judge.compare(question, expected, whole)
            reward = config.reward_if_full_generation_succeeds if again.equal else 0.0
            return self._score(body, reward, [first, again])
        if is_long or not config.check_twice_swap:
            return self._score(body, 1.0, [first])
        swapped = await self._judge.compare(question, answer, expected)
        reward = 1.0 if swapped.equal else config.reward_if_swap_fails
        return self._score(body, reward, [first, swapped])

    async def _extract(self, regex: str | None, text: str) -> str:
        """Return the match of the regex; the whole text if there is none or it takes too long."""
        found = None
        if regex and text:
            with suppress(TimeoutError):
                found = await self._regex_worker.call(regex, text)
        return text if found is None else found or self.config.msg_extraction_failure

    def _score(
        self, body: EquivalenceRequest, reward: float, evaluations: list[Evaluation]
    ) -> VerifyResponse:
        return body.scored(
            reward=reward,
            expected_answer=body.expected,
            judge_evaluations=[each.record for each in evaluations],
            **issue_of(evaluations),
        )


def _read_last_message(response: JsonObject) -> str:
    for item in reversed(output_items(response)):
        if item.get("type") == "message" and item.get("role") == "assistant":
            return "\n".join(content_texts(item.get("content")))
    return ""


def _are_equal(answer: str, expected: str) -> bool:
    return " ".join(answer.split()).casefold() == " ".join(expected.split()).casefold()
