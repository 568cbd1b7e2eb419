"""The engine that answers requests, and its replacement while the server runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rollout_kit.errors import ModelError
from rollout_kit.rl.weights.folder import step_folder

from .engine import Engine
from .tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Policy:
    """A loaded checkpoint. A request takes one policy, so each response has one version."""

    engine: Engine
    tokenizer: ChatTokenizer
    version: int | None = None


class Succession:
    """The policy in use, and the one before it while requests end there: at most two engines. So
    an update delays no request, and no response mixes two policies."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._retiring: asyncio.Task[None] | None = None
        self._earlier: Policy | None = None
        self._looking_back = asyncio.Lock()

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

    @asynccontextmanager
    async def of_version(
        self, version: int | None, steps: Path | None, first: Path
    ) -> AsyncIterator[Engine]:
        """Context with the engine of a version: the one in use, or an earlier one whose folder is
        still there; that of version 0 is `first`. The last of these stays loaded. ModelError if
        there is none."""
        if version is None or version == self.policy.version:
            yield self.policy.engine
            return
        async with self._looking_back:
            if self._earlier is None or self._earlier.version != version:
                folder = step_folder(steps, version) if steps and version else None
                folder = first if version == 0 else folder
                if folder is None or not await asyncio.to_thread(folder.is_dir):
                    what = f"version {version} of the weights is gone"
                    raise ModelError(what, status=412, retryable=False)
                if self._earlier:
                    await self._earlier.engine.close()
                self._earlier = None
                self._earlier = await asyncio.to_thread(load_policy, folder, version, num_threads=1)
            yield self._earlier.engine

    async def close(self) -> None:
        if self._earlier:
            await self._earlier.engine.close()
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
