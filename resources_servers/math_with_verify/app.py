"""Mathematics, verified by symbolic equality with the expected answer.

Most answers are decided here, as equal text or as two plain numbers. The rest goes to math-verify
in a process that is killed at its deadline: sympy may take minutes and gigabytes on a short term.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rollout_kit import (
    Evaluation,
    JsonObject,
    Judge,
    JudgeConfig,
    ResourcesServer,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    VerifyWorkersConfig,
    WorkerPool,
    output_text,
)
from rollout_kit.serving.judge import issue_of, question_of

from .answers import ANSWER_LIMIT, are_equal, expected_text, extract

TEXT_LIMIT = 200_000
"""Characters of a response, from its end, that are searched for the answer."""

WORKER_MEMORY_MB = 2048
"""Address space of a worker: sympy needs 0.3 GB, and an answer that needs more is none."""


class MathConfig(VerifyWorkersConfig, JudgeConfig):
    should_use_judge: bool = Field(
        False, description="Ask a judge, in both orders, where the comparison finds no equality."
    )


class MathVerifyRequest(VerifyRequest):
    question: str | None = None
    expected_answer: str | int | float


class MathWithVerify(ResourcesServer):
    """Reward 1.0 when the extracted answer equals `expected_answer`, or a judge finds the response
    to mean it; else 0.0."""

    Config = MathConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    needs: ClassVar[Mapping[str, str]] = {"math_verify": "rollout-kit[math]"}

    def __init__(self, config: MathConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._workers = WorkerPool(
            Path(__file__).with_name("symbolic.py"),
            "are_equal",
            num_workers=config.num_verify_workers,
            deadline_s=config.verify_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )
        self._judge = None
        if config.should_use_judge:
            self._judge = Judge(config, peers, name, Path(__file__).parent)

    async def start(self) -> None:
        if not self.config.fast_mode:
            await self._workers.start(
                f"{self.name} needs math-verify: run pip install 'rollout-kit[math]', or set"
                " fast_mode: true to compare text and numbers only"
            )

    async def stop(self) -> None:
        await self._workers.close()

    async def verify(self, body: MathVerifyRequest) -> VerifyResponse:
        text = output_text(body.response)[-TEXT_LIMIT:]
        answer = extract(text)
        expected = expected_text(str(body.expected_answer))
        verdict, timed_out = False, False
        if answer is not None:
            decided = are_equal(expected, answer)
            if decided is None and not self.config.fast_mode and len(answer) <= ANSWER_LIMIT:
                try:
                    decided = await self._workers.call(expected, answer)
                except TimeoutError:
                    timed_out = True
            verdict = bool(decided)
        found: JsonObject = {
            "library_reward": float(verdict),
            "extracted_answer": answer,
            "verify_timed_out": timed_out,
        }
        if self._judge is not None and not verdict and text.strip():
            question = body.question or question_of(body.responses_create_params)
            opinions = await _both_orders(self._judge, question, str(body.expected_answer), text)
            verdict = all(each.equal for each in opinions)
            found["judge_evaluations"] = [each.record for each in opinions]
            found |= issue_of(opinions)
        return body.scored(reward=float(verdict), **found)


async def _both_orders(
    judge: Judge, question: str, expected: str, generated: str
) -> list[Evaluation]:
    """Judges prefer what stands first: the second order is asked where the first finds equality."""
    first = await judge.compare(question, expected, generated)
    if not first.equal:
        return [first]
    return [first, await judge.compare(question, generated, expected)]
