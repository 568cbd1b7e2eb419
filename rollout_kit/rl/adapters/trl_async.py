"""Rollouts for TRL's `AsyncGRPOTrainer`, from an experience buffer that a collection fills.

    rollouts = TrlAsyncRollouts("http://127.0.0.1:9500", CheckpointManager(weights, base=model))
    AsyncGRPOTrainer(..., rollout_worker=rollouts, weight_transfer=rollouts)

The trainer's weights become steps in the manager's folder, which the model server follows; the
number of a step is the version of the buffer and of the rollouts.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors.torch import save_file  # type: ignore[import-not-found]
from trl.experimental.async_grpo.async_rollout_worker import (  # type: ignore[import-not-found]
    RolloutSample,
)

from ...responses import input_items
from ...types import JsonObject
from ..buffer.buffer import Buffer
from ..buffer.group import BufferedGroup
from ..buffer.opening import open_buffer
from ..rows import read_group
from ..weights.checkpoints import MODEL, CheckpointManager

LOOK_S = 0.2
"""How long the worker waits for groups before it looks at the trainer again."""


class TrlAsyncRollouts:
    """TRL's `RolloutWorkerProtocol` and `WeightTransferProtocol` in one object.

    Up to about `ahead` samples wait in the trainer's queue; the rest stay in the buffer. A group is
    acknowledged when the trainer has read its samples. The collection ends with the training if it
    `finishes`.
    """

    def __init__(
        self,
        buffer: str,
        manager: CheckpointManager,
        *,
        ahead: int = 1,
        finishes: bool = True,
        auth_token: str = "",
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self._url, self._token = buffer, auth_token
        self._manager, self._ahead, self._finishes = manager, ahead, finishes
        latest = manager.latest()
        self._step = latest.version if latest else 0
        self._behind = 0
        """What a step's number is above TRL's version, which begins again with every training."""
        self._leases: deque[tuple[int, str]] = deque()
        """Number of samples after which a lease is used up, and the lease."""
        self._num_put = self._num_groups = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="rollouts")
        self._stopping = threading.Event()
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident:
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        self._behind = self._step - model_version

    def check_health(self, stale_after_s: float) -> None:
        if self._error or not self._thread.is_alive():
            raise RuntimeError(f"no more rollouts come: {self._error}") from self._error

    def pause(self) -> None:
        """Nothing is paused: the model server follows on its own."""

    init_weight_transfer = resume = destroy = pause

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        tensors = {name: each.detach().cpu().contiguous() for name, each in iterator}
        with self._manager.write(self._step + 1) as folder:
            save_file(tensors, folder / MODEL, metadata={"format": "pt"})
        self._step += 1

    def _work(self) -> None:
        try:
            asyncio.run(self._feed())
        except BaseException as error:
            self._error = error

    async def _feed(self) -> None:
        """Move groups from the buffer to the trainer's queue."""
        told = -1
        async with await open_buffer(self._url, token=self._token) as buffer:
            while not self._stopping.is_set():
                if told != self._step:
                    told = self._step
                    await buffer.set_version(told)
                await self._acknowledge(buffer)
                if self.rollout_buffer.qsize() >= self._ahead:
                    await asyncio.sleep(LOOK_S / 10)
                elif batch := await buffer.get(1, timeout_s=LOOK_S):
                    for group in batch.groups:
                        self._put(group)
                    self._leases.append((self._num_put, batch.lease))
                elif (await buffer.stats())["finished"]:
                    raise RuntimeError("the collection has ended")
            await self._acknowledge(buffer)
            if self._finishes:
                await buffer.finish()

    async def _acknowledge(self, buffer: Buffer) -> None:
        num_read = self._num_put - self.rollout_buffer.qsize()
        while self._leases and self._leases[0][0] <= num_read:
            await buffer.ack(self._leases.popleft()[1])

    def _put(self, buffered: BufferedGroup) -> None:
        """The samples of a group: one for each token sequence."""
        group = read_group(buffered.rollouts, buffered.rewards)
        self._num_groups += 1
        version = self._step if buffered.version_first is None else buffered.version_first
        for line, rollout in zip(buffered.rollouts, group.rollouts, strict=True):
            for row in rollout.rows:
                self._num_put += 1
                self.rollout_buffer.put(
                    RolloutSample(
                        prompt=input_items(line.get("responses_create_params") or {}),
                        completion=[],
                        input_ids=np.array(row.token_ids),
                        completion_mask=np.array(row.mask),
                        old_log_probs=np.array(row.log_probs, dtype=np.float32),
                        advantage=row.advantage,
                        model_version=version - self._behind,
                        group_id=self._num_groups,
                        metrics=_metrics(rollout.reward, rollout.components),
                        enqueued_at=time.time(),
                    )
                )


def _metrics(reward: float | None, components: JsonObject) -> dict[str, float]:
    """What TRL logs, as means over the samples of a step; NaN where there is no reward."""
    named = {f"rewards/{name}": value for name, value in components.items() if name != "reward"}
    return {"reward": float("nan") if reward is None else reward, **named}
