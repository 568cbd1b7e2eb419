"""The engine that answers requests, and its replacement while the server runs."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from .engine import Engine
from .tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Policy:
    """A loaded checkpoint. A request takes one policy, so each response has one version."""

    engine: Engine
    tokenizer: ChatTokenizer
    version: int | None = None


class Succession:
    """The policy in use, and the one before it while requests end there: at most two engines."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._retiring: asyncio.Task[None] | None = None

    async def replace(
        self, checkpoint: Path, version: int, *, num_threads: int, adapter: Path | None = None
    ) -> None:
        """Load other weights and use them from then on."""
        if self._retiring:
            await self._retiring
        new = await asyncio.to_thread(
            load_policy, checkpoint, version, num_threads=num_threads, adapter=adapter
        )
        old, self.policy = self.policy, new
        self._retiring = asyncio.create_task(old.engine.retire())

    async def close(self) -> None:
        await self.policy.engine.close()
        if self._retiring:
            await self._retiring


def load_policy(
    checkpoint: Path, version: int | None, *, num_threads: int, adapter: Path | None = None
) -> Policy:
    """A policy. What a step was converted to is removed with its engine."""
    is_kept = version is None or version == 0
    engine = Engine(checkpoint, num_threads=num_threads, adapter=adapter, is_kept=is_kept)
    return Policy(engine, ChatTokenizer(checkpoint), version)
