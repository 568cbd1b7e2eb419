"""Answers that a judge grades as a benchmark has it: SimpleQA, Humanity's Last Exam, HealthBench
and Arena-Hard. Their prompts are in `prompts`.
"""

import re
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    Reverify,
    RunRequest,
    TaskError,
    VerifyRequest,
    VerifyResponse,
    content_texts,
    input_items,
    output_text,
)
from rollout_kit.serving.judge import JudgeModel, JudgeModelConfig
from rollout_kit.serving.service import ServerRef
from rollout_kit.serving.transport.loop import gather_all

from .asking import Question, read_prompt
from .kinds import (
    GAMES,
    Kind,
    compare_styles,
    read_confidence,
    read_correct,
    read_grade,
    read_met,
    read_verdict,
    score_points,
)

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are judged."""

LITERAL = re.compile(r"Gold target: (.*)\nPredicted answer: (.*)\n```\n\nGrade the predicted")

NEEDED = {
    "simple_qa": ("question", "expected_answer"),
    "hle": ("question", "expected_answer"),
    "health_bench": ("rubric",),
    "arena_hard": ("question", "baseline_answer", "category"),
}
"""Kind → the fields that its rows have."""


class GradedAnswersConfig(JudgeModelConfig):
    kind: Kind = Field("simple_qa", description="The benchmark whose prompts and rules are used.")
    judge_model_server: ServerRef | None = Field(
        ServerRef(type="responses_api_models", name="judge"),
        description="The model server that judges, preferably not the policy model.",
    )
    judge_responses_create_params: JsonObject = Field(
        default_factory=lambda: {"temperature": 0.0, "max_output_tokens": 4096},
        description="Request parameters of each question to the judge.",
    )
    judge_tries: int = Field(
        3, ge=1, description="Maximum number of questions to the judge until its reply can be read."
    )


class RubricItem(BaseModel):
    """A criterion and its points, which are below 0 for what an answer should not do."""

    model_config = ConfigDict(extra="allow")

    criterion: str
    points: int | float


class GradedRow(RunRequest):
    """A row. Which fields it needs depends on the kind."""

    question: str | None = None
    expected_answer: str | None = None
    rubric: list[RubricItem] | None = None
    baseline_answer: str | None = None
    category: str | None = None


class GradedAnswersRequest(GradedRow, VerifyRequest):
    """A row with its response."""


class GradedAnswers(ResourcesServer):
    """The reward is what the judge's replies come to by the rules of the benchmark."""

    Config = GradedAnswersConfig
    config: GradedAnswersConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    measured: ClassVar[frozenset[str]] = frozenset({"judge_replies"})
    """Outputs of a judge differ between calls."""

    def __init__(self, config: GradedAnswersConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._model = JudgeModel(config, peers, name)
        self._prompt = read_prompt(Path(__file__).parent / "prompts" / f"{config.kind}.yaml")

    async def seed_session(self, body: GradedRow) -> JsonObject:
        """Refuse rows of another kind before the model is called."""
        for name in NEEDED[self.config.kind]:
            if getattr(body, name) is None:
                raise TaskError(f"{name} is missing: the kind {self.config.kind} needs it")
        points = [each.points for each in body.rubric or ()]
        if self.config.kind == "health_bench" and not any(each > 0 for each in points):
            raise TaskError("rubric: no criterion has positive points")
        if not self._prompt.has_category(body.category):
            raise TaskError(f"category: there is no prompt for '{body.category}'")
        return {}

    async def verify(self, body: GradedAnswersRequest) -> VerifyResponse:
        answer = output_text(body.response)[-TEXT_LIMIT:]
        grade = {
            "simple_qa": self._grade_short_answer,
            "hle": self._grade_exam,
            "health_bench": self._grade_by_rubric,
            "arena_hard": self._compare_with_baseline,
        }[self.config.kind]
        return await grade(body, answer)

    async def _grade_short_answer(self, body: GradedAnswersRequest, answer: str) -> VerifyResponse:
        reply, grade = await self._ask(self._question(body, answer), read_grade)
        return body.scored(
            reward=float(grade == "A"),
            is_correct=float(grade == "A"),
            is_incorrect=float(grade == "B"),
            not_attempted=float(grade == "C"),
            judge_replies=[reply],
        )

    async def _grade_exam(self, body: GradedAnswersRequest, answer: str) -> VerifyResponse:
        confidence = read_confidence(answer)
        if not answer.strip():
            return body.scored(reward=0.0, confidence=confidence, judge_replies=[])
        reply, is_correct = await self._ask(self._question(body, answer), read_correct)
        return body.scored(reward=float(is_correct), confidence=confidence, judge_replies=[reply])

    async def _grade_by_rubric(self, body: GradedAnswersRequest, answer: str) -> VerifyResponse:
        rubric = [each.model_dump() for each in body.rubric or ()]
        if not answer:
            return body.scored(reward=0.0, criteria_met=0.0, judge_replies=[])
        conversation = _write_conversation(body.responses_create_params, answer)
        items = [f"[{each['points']}] {each['criterion']}" for each in rubric]
        asked = [self._prompt.fill(conversation=conversation, criterion=each) for each in items]
        found = await gather_all([self._ask(each, read_met) for each in asked])
        met = [is_met for _, is_met in found]
        return body.scored(
            reward=score_points(rubric, met),
            criteria_met=sum(met) / len(met),
            judge_replies=[reply for reply, _ in found],
        )

    async def _compare_with_baseline(
        self, body: GradedAnswersRequest, answer: str
    ) -> VerifyResponse:
        """In both orders, because judges prefer one of the places."""
        baseline = str(body.baseline_answer)
        asked = [
            self._prompt.fill(
                body.category, question=str(body.question), answer_1=first, answer_2=second
            )
            for first, second in ((answer, baseline), (baseline, answer))
        ]
        found = await gather_all([self._ask(each, read_verdict) for each in asked])
        verdicts = [verdict for _, verdict in found]
        (own, weight), (theirs, swapped_weight) = (GAMES[each] for each in verdicts)
        return body.scored(
            reward=float(own == 1.0),
            verdicts=verdicts,
            battles=[
                {"score": own, "weight": weight},
                {"score": 1.0 - theirs, "weight": swapped_weight},
            ],
            judge_replies=[reply for reply, _ in found],
            **compare_styles(answer, baseline),
        )

    def _question(self, body: GradedAnswersRequest, answer: str) -> Question:
        return self._prompt.fill(
            question=str(body.question), answer=answer, expected=str(body.expected_answer)
        )

    async def _ask(self, question: Question, read: Any) -> tuple[str, Any]:
        """A reply and what it says; VerifyError if none of some replies can be read."""
        reply = ""
        for _ in range(self.config.judge_tries):
            _, response = await self._model.ask(question)
            reply = output_text(response)
            if (found := read(reply)) is not None:
                return reply, found
        what = "gave no verdict that can be read"
        raise self._model.refuse(what, body=reply, is_final=True)

    @staticmethod
    def reply_literally(prompt: str) -> str:
        """What a judge of SimpleQA would reply that takes nothing but the expected text. It stands
        in for a judge where none is asked."""
        found = LITERAL.search(prompt)
        return "A" if found and found[1] == found[2] else "B"


def _write_conversation(params: JsonObject, answer: str) -> str:
    said = [
        (str(item.get("role")), "\n".join(content_texts(item.get("content"))))
        for item in input_items(params)
    ]
    return "\n\n".join(f"{role}: {text}" for role, text in [*said, ("assistant", answer)])
