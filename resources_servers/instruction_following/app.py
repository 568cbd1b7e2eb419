"""Instructions that rules can check: the kinds of IFEval, IFBench and Open-Instruct.

Checks run in worker processes that are killed at a deadline, because they need heavy packages and
use regular expressions from datasets.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

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
    output_items,
    output_text,
)

GradingMode = Literal["binary", "fraction"]
Instruction = tuple[str, JsonObject]

FIELDS = {"instruction_id_list", "kwargs", "grading_mode"}
"""Fields of a row that count in `verifier_metadata`, if they are there too."""


class InstructionFollowingConfig(VerifyWorkersConfig):
    grading_mode: GradingMode | None = Field(
        None, description="Overrides the grading_mode of every row."
    )
    loose: bool = Field(False, description="Also report the loose accuracies of IFEval.")


class Instructions(RunRequest):
    """A row. Its fields may also be in `verifier_metadata`. `id` and `prompt` are not used."""

    instruction_id_list: list[str] = Field(min_length=1)
    kwargs: list[JsonObject | None]
    grading_mode: GradingMode = "binary"

    @model_validator(mode="before")
    @classmethod
    def _lifted(cls, row: Any) -> Any:
        metadata = row.get("verifier_metadata") if isinstance(row, dict) else None
        if not isinstance(metadata, dict):
            return row
        return {**metadata, **row, **{field: metadata[field] for field in FIELDS & metadata.keys()}}

    @model_validator(mode="after")
    def _one_each(self) -> "Instructions":
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError(
                f"kwargs has {len(self.kwargs)} entries for {len(self.instruction_id_list)}"
                " instructions: give one each, null or {} for no arguments"
            )
        return self

    @property
    def instructions(self) -> list[Instruction]:
        """Each id with its arguments, without null values, which belong to other kinds."""
        given = [
            {name: value for name, value in (arguments or {}).items() if value is not None}
            for arguments in self.kwargs
        ]
        return list(zip(self.instruction_id_list, given, strict=True))


class InstructionsRequest(Instructions, VerifyRequest):
    """A row with its response."""

    reads_metadata: ClassVar[bool] = True


def find_variants(text: str) -> list[str]:
    """What IFEval also tries: the text without its first line, its last line, or both, each with
    and without asterisks. Blank ones follow nothing."""
    lines = text.split("\n")
    parts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    found = [*parts[1:], *(part.replace("*", "") for part in parts)]
    return [each for each in dict.fromkeys(found) if each.strip()]


class InstructionFollowing(ResourcesServer):
    """Reward 1.0 if every instruction is followed; with `fraction`, the share that is followed."""

    Config = InstructionFollowingConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    needs: ClassVar[Mapping[str, str]] = {
        "langdetect": "rollout-kit[instruction-following]",
        "nltk": "rollout-kit[instruction-following]",
    }

    def __init__(self, config: InstructionFollowingConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._checks = self._make_pool("checks.py", config.num_verify_workers)
        self._nltk_checks = self._make_pool("nltk_checks.py", 1)

    def _make_pool(self, file: str, num_workers: int) -> WorkerPool:
        return WorkerPool(
            Path(__file__).with_name(file),
            "run",
            num_workers=num_workers,
            deadline_s=self.config.verify_timeout_s,
            wall_deadline_s=self.config.verify_wall_timeout_s,
        )

    async def start(self) -> None:
        """Start the workers, except nltk's, which starts with the first row that needs it."""
        self.check_needs()
        await self._checks.start()

    async def stop(self) -> None:
        await self._checks.close()
        await self._nltk_checks.close()

    async def seed_session(self, body: Instructions) -> JsonObject:
        """Refuse rows with unknown or invalid instructions before the model is called."""
        try:
            problems = await self._checks.call(body.instructions, None)
        except TimeoutError:
            problems = ["a regular expression takes too long to compile"]
        if problems:
            raise TaskError(f"the verifier cannot take this row: {'; '.join(problems)}")
        return {}

    async def verify(self, body: InstructionsRequest) -> VerifyResponse:
        text, timed_out = output_text({"output": output_items(body.response)[-1:]}), False
        try:
            followed = await self._check(body.instructions, text)
        except TimeoutError:
            followed, timed_out = [False] * len(body.instruction_id_list), True
        more = {} if not self.config.loose else await self._loosely(body, text, followed)
        mode = self.config.grading_mode or body.grading_mode
        reward = all(followed) if mode == "binary" else sum(followed) / len(followed)
        return body.scored(
            reward=float(reward),
            follow_all_instructions=all(followed),
            follow_instruction_list=followed,
            verify_timed_out=timed_out,
            **more,
        )

    async def _loosely(
        self, body: InstructionsRequest, text: str, strictly: list[bool]
    ) -> dict[str, float]:
        """IFEval's other numbers. For the loose ones a variant of the text may follow, too."""
        followed = list(strictly)
        for variant in find_variants(text):
            if all(followed):
                break
            with suppress(TimeoutError):
                found = await self._check(body.instructions, variant)
                followed = [one or other for one, other in zip(followed, found, strict=True)]
        return {
            "instruction_strict": sum(strictly) / len(strictly),
            "prompt_loose": float(all(followed)),
            "instruction_loose": sum(followed) / len(followed),
            "num_instructions": float(len(followed)),
            "num_followed": float(sum(strictly)),
            "num_followed_loose": float(sum(followed)),
        }

    async def _check(self, instructions: list[Instruction], text: str) -> list[bool]:
        found = await self._checks.call(instructions, text)
        others = [each for each, known in zip(instructions, found, strict=True) if known is None]
        if not others:
            return found
        rest = iter(await self._nltk_checks.call(others, text))
        return [next(rest) if known is None else known for known in found]
