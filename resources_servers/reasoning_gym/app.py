"""Task families of the package reasoning-gym, scored by the package.

The package is heavy and some scorers are slow, so it runs in worker processes that are killed at a
deadline.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    Reverify,
    TaskError,
    VerifyRequest,
    VerifyResponse,
    VerifyWorkersConfig,
    WorkerPool,
    content_texts,
    output_items,
)
from rollout_kit.errors import how_to_install

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are searched for the answer."""

WORKER_MEMORY_MB = 4096
"""Limit on the address space of a worker."""

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


class ReasoningGym(ResourcesServer):
    """The reward is the family's score of the extracted answer, from 0.0 to 1.0."""

    Config = VerifyWorkersConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    needs: ClassVar[Mapping[str, str]] = {"reasoning_gym": "rollout-kit[reasoning-gym]"}

    def __init__(self, config: VerifyWorkersConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._families: set[str] = set()
        self._workers = WorkerPool(
            Path(__file__).with_name("scoring.py"),
            "score",
            num_workers=config.num_verify_workers,
            deadline_s=config.verify_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )

    async def start(self) -> None:
        await self._workers.start(
            f"{self.name} needs reasoning-gym: run {how_to_install('rollout-kit[reasoning-gym]')}"
        )
        self._families = set(await self._workers.call(None, None))

    async def stop(self) -> None:
        await self._workers.close()

    async def seed_session(self, body: JsonObject) -> JsonObject:
        """Refuse unknown families before the model is called."""
        family = body["metadata"]["source_dataset"]
        if family not in self._families:
            raise TaskError(f"metadata.source_dataset: reasoning-gym has no family '{family}'")
        return {}

    async def verify(self, body: ReasoningGymRequest) -> VerifyResponse:
        answer = extract(_read_text(body.response)[-TEXT_LIMIT:])
        row = body.model_dump(include={"question", "answer", "metadata"})
        score, timed_out = 0.0, False
        try:
            score = await self._workers.call(row, answer)
        except TimeoutError:
            timed_out = True
        return body.scored(
            reward=score,
            task_name=body.metadata.source_dataset,
            score=score,
            extracted_answer=answer,
            verify_timed_out=timed_out,
        )


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
