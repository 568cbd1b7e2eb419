"""Mathematics, verified by symbolic equality with the expected answer.

Most answers are compared here, as text or numbers. math-verify compares the others in a process
that is killed at its deadline, because sympy may need minutes and gigabytes for a short term.
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
from rollout_kit.errors import how_to_install
from rollout_kit.serving.fingerprint import find_versions
from rollout_kit.serving.judge import issue_of, question_of

from .answers import ANSWER_LIMIT, are_equal
from .extraction import extract, extract_expected

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are searched for the answer."""

WORKER_MEMORY_MB = 2048
"""Limit on the address space of a worker; sympy itself needs 0.3 GB."""


class MathConfig(VerifyWorkersConfig, JudgeConfig):
    should_use_judge: bool = Field(
        False, description="Ask a judge, in both orders, about answers that are not equal."
    )


class MathVerifyRequest(VerifyRequest):
    question: str | None = None
    expected_answer: str | int | float


class MathWithVerify(ResourcesServer):
    """Reward 1.0 if the extracted answer equals `expected_answer`, or a judge finds the response
    equivalent; else 0.0."""

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
            wall_deadline_s=config.verify_wall_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )
        self._judge = None
        if config.should_use_judge:
            self._judge = Judge(config, peers, name, Path(__file__).parent)

    async def start(self) -> None:
        if not self.config.fast_mode:
            await self._workers.start(
                f"{self.name} needs math-verify: run {how_to_install('rollout-kit[math]')}, or set"
                " fast_mode: true to compare text and numbers only"
            )

    async def stop(self) -> None:
        await self._workers.close()

    def library_versions(self) -> dict[str, str]:
        return find_versions(["sympy", "latex2sympy2_extended"])

    async def verify(self, body: MathVerifyRequest) -> VerifyResponse:
        text = output_text(body.response)[-TEXT_LIMIT:]
        expected = extract_expected(str(body.expected_answer))
        answer = extract(text, expected)
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
            opinions = await _ask_twice(self._judge, question, str(body.expected_answer), text)
            verdict = all(each.equal for each in opinions)
            found["judge_evaluations"] = [each.record for each in opinions]
            found |= issue_of(opinions)
        return body.scored(reward=float(verdict), **found)


async def _ask_twice(
    judge: Judge, question: str, expected: str, generated: str
) -> list[Evaluation]:
    """Ask the judge; if it finds equality, ask again in the other order, because judges prefer the
    first answer."""
    first = await judge.compare(question, expected, generated)
    if not first.equal:
        return [first]
    return [first, await judge.compare(question, generated, expected)]
