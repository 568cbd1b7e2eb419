"""Task families of the package reasoning-gym, scored by the package.

The package is heavy and some scorers are slow, so it runs in worker processes that are killed at a
deadline. Families whose scorers evaluate text run in a sandbox, one process for each verdict.
"""

import asyncio
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    Reverify,
    Sandbox,
    SandboxError,
    SandboxLimits,
    TaskError,
    VerifyError,
    VerifyRequest,
    VerifyResponse,
    VerifyWorkersConfig,
    WorkerPool,
    content_texts,
    output_items,
)
from rollout_kit.errors import ConfigError, how_to_install
from rollout_kit.serving.sandbox.sandbox import with_requirements
from rollout_kit.serving.service import OPERATIONAL

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are searched for the answer."""

WORKER_MEMORY_MB = 4096
"""Limit on the address space of a worker."""

EVALUATED = frozenset(
    {
        *("binary_matrix", "bitwise_arithmetic", "countdown", "intermediate_integration"),
        *("n_queens", "number_sorting", "polynomial_multiplication", "puzzle24"),
        *("simple_integration", "spiral_matrix", "string_insertion"),
    }
)
"""Families whose scorers evaluate the answer or a text of the row: see `evaluating.py`."""

OPENED, CLOSED = "<answer>", "</answer>"


class Metadata(BaseModel):
    """Data for the family's scorer; the fields depend on the family."""

    model_config = ConfigDict(extra="allow")

    source_dataset: str


class ReasoningGymRequest(VerifyRequest):
    """A row of reasoning-gym; `answer` is null if there are many or none is known."""

    question: str
    answer: str | int | float | None = None
    metadata: Metadata


class ReasoningGymConfig(VerifyWorkersConfig):
    unsafe_code: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Evaluate answers even if the sandbox does not work.",
    )


class ReasoningGym(ResourcesServer):
    """The reward is the family's score of the extracted answer, from 0.0 to 1.0."""

    Config = ReasoningGymConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    needs: ClassVar[Mapping[str, str]] = {"reasoning_gym": "rollout-kit[reasoning-gym]"}

    def __init__(self, config: ReasoningGymConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._families: set[str] = set()
        self._workers = WorkerPool(
            Path(__file__).with_name("scoring.py"),
            "score",
            num_workers=config.num_verify_workers,
            deadline_s=config.verify_timeout_s,
            wall_deadline_s=config.verify_wall_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()
        self._refusal = ""

    async def start(self) -> None:
        await self._workers.start(
            f"{self.name} needs reasoning-gym: run {how_to_install('rollout-kit[reasoning-gym]')}"
        )
        self._families = set(await self._workers.call(None, None))

    async def stop(self) -> None:
        await self._workers.close()
        if self._sandbox is not None:
            await self._sandbox.close()

    async def seed_session(self, body: JsonObject) -> JsonObject:
        """Refuse unknown families before the model is called."""
        family = body["metadata"]["source_dataset"]
        if family not in self._families:
            raise TaskError(f"metadata.source_dataset: reasoning-gym has no family '{family}'")
        if family in EVALUATED:
            await self._open_sandbox(family)
        return {}

    async def verify(self, body: ReasoningGymRequest) -> VerifyResponse:
        answer = extract(_read_text(body.response)[-TEXT_LIMIT:])
        row = body.model_dump(include={"question", "answer", "metadata"})
        score_it = self._evaluate if body.metadata.source_dataset in EVALUATED else self._score
        score, timed_out = 0.0, False
        try:
            score = await score_it(row, answer)
        except TimeoutError:
            timed_out = True
        return body.scored(
            reward=score,
            task_name=body.metadata.source_dataset,
            score=score,
            extracted_answer=answer,
            verify_timed_out=timed_out,
        )

    async def _score(self, row: JsonObject, answer: str) -> float:
        return await self._workers.call(row, answer)

    async def _evaluate(self, row: JsonObject, answer: str) -> float:
        """Score in the sandbox; TimeoutError if the answer is too much for it."""
        sandbox = await self._open_sandbox(row["metadata"]["source_dataset"])
        limits = SandboxLimits(
            time_s=self.config.verify_wall_timeout_s,
            cpu_s=math.ceil(self.config.verify_timeout_s),
            memory_mb=WORKER_MEMORY_MB,
        )
        try:
            run = await sandbox.call("score", row, answer, limits=limits)
        except SandboxError as error:
            raise VerifyError(f"the sandbox failed: {error}") from error
        if run.end == "time":
            raise VerifyError(
                f"no score within {limits.time_s:g} s: this machine is too busy for"
                " verify_timeout_s to run out. This is no verdict: ng_reverify asks again",
                retryable=False,
            )
        if run.end != "finished":
            raise TimeoutError
        return float(run.value) if isinstance(run.value, int | float) else 0.0

    async def _open_sandbox(self, family: str) -> Sandbox:
        """The sandbox, started with the first row that needs it; TaskError if it cannot be."""
        async with self._opening:
            if self._sandbox is None and not self._refusal:
                sandbox = Sandbox(
                    self.config.num_verify_workers,
                    packages=with_requirements("reasoning-gym"),
                    unsafe=self.config.unsafe_code,
                    task=Path(__file__).with_name("evaluating.py"),
                )
                try:
                    await sandbox.start()
                    self._sandbox = sandbox
                except ConfigError as error:
                    self._refusal = str(error)
        if self._sandbox is None:
            raise TaskError(
                f"metadata.source_dataset: the scorer of '{family}' evaluates text of the answer or"
                f" the row, which needs a sandbox: {self._refusal}"
            )
        return self._sandbox


def _read_text(response: JsonObject) -> str:
    messages = [item for item in output_items(response) if item.get("type") == "message"]
    return "".join(text for item in messages for text in content_texts(item.get("content")))


def extract(text: str) -> str:
    """Return the content of the last `<answer>…</answer>`, otherwise of the last `\\boxed{…}`,
    otherwise the whole text."""
    found, at = None, 0
    while (start := text.find(OPENED, at)) >= 0 and (end := text.find(CLOSED, start)) >= 0:
        found, at = text[start + len(OPENED) : end].strip(), end + len(CLOSED)
    return found if found is not None else _find_boxed(text) or text.strip()


def _find_boxed(text: str) -> str:
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth = 0
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start + len("\\boxed{") : start + brace.start()].strip()
    return ""
