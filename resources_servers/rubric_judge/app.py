"""Answers to open questions, graded by one or several judges with a rubric.

The rubric stands in the row, or in the YAML for all rows.
"""

from collections.abc import Awaitable
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, ValidationError, model_validator

from rollout_kit import (
    Criterion,
    Graded,
    JsonObject,
    ResourcesServer,
    Reverify,
    RubricConfig,
    RubricJudges,
    TaskError,
    VerifyRequest,
    VerifyResponse,
    output_text,
)
from rollout_kit.serving.judges.rubric import check_rubric
from rollout_kit.serving.service import ServerRef


class RubricJudgeConfig(RubricConfig):
    model_config = ConfigDict(extra="forbid")

    judge_model_server: ServerRef | None = Field(
        ServerRef(type="responses_api_models", name="policy_model"),
        description="The model server that judges, preferably not the policy model.",
    )


class RubricRequest(VerifyRequest):
    """A row. `rubric` replaces the criteria of the YAML."""

    rubric: list[Criterion] | None = None
    reference_answer: str | None = None

    @model_validator(mode="after")
    def _is_sound(self) -> "RubricRequest":
        if self.rubric is not None:
            check_rubric(self.rubric)
        return self


class RubricJudge(ResourcesServer):
    """The reward is the weighted share of the rubric that the judges find met."""

    Config = RubricJudgeConfig
    config: RubricJudgeConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    measured: ClassVar[frozenset[str]] = frozenset({"judge_evaluations"})
    """Outputs of a judge differ between calls."""

    def __init__(self, config: RubricJudgeConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._judges = RubricJudges(config, peers, name)

    def check_later(self, row: JsonObject) -> Awaitable[None] | None:
        try:
            self._rubric_of(RubricRequest.model_validate({"response": {}, **row}))
        except ValidationError:
            return None  # every row is validated anyway, with its fields named
        return None

    async def verify(self, body: RubricRequest) -> VerifyResponse:
        rubric = self._rubric_of(body)
        answer = output_text(body.response).strip()
        if not answer:
            scores = dict.fromkeys((each.name for each in rubric), 0.0)
            return self._score(body, Graded(0.0, scores, []))
        found = await self._judges.grade(
            rubric, body.responses_create_params, answer, body.reference_answer or ""
        )
        return self._score(body, found)

    def _rubric_of(self, body: RubricRequest) -> list[Criterion]:
        """The row's rubric, or that of the YAML; TaskError if neither fits the row."""
        rubric = self.config.criteria if body.rubric is None else body.rubric
        if not rubric:
            raise TaskError("no rubric: the row has none, and the YAML has no criteria")
        pairwise = [each.name for each in rubric if each.kind == "pairwise"]
        if pairwise and not body.reference_answer:
            raise TaskError(
                f"reference_answer is missing: '{pairwise[0]}' compares the answer with it"
            )
        return rubric

    def _score(self, body: RubricRequest, found: Graded) -> VerifyResponse:
        named = {f"criterion_{name}": score for name, score in found.scores.items()}
        quoted = [
            grade.is_quoted
            for opinion in found.opinions
            for grade in opinion.grades
            if grade.is_quoted is not None
        ]
        return body.scored(
            reward=found.reward,
            rubric_scores=found.scores,
            judge_evaluations=[each.as_json() for each in found.opinions],
            **({"evidence_quoted": sum(quoted) / len(quoted)} if quoted else {}),
            **(named if body.rubric is None else {}),
        )
