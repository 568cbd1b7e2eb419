"""AReaL's `RolloutWorkflow` on servers of this toolkit: rollouts run in the process of a rollout
worker and ask AReaL's engine.

    workflow = RolloutKitWorkflow(config.gconfig, tokenizer, ["my.yaml"], output_dir="run/rollouts")
    trainer.train(workflow=workflow)

`row` in a sample of the data set is the task as JSON.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]
from areal.api.io_struct import ModelRequest  # type: ignore[import-not-found]
from areal.api.workflow_api import RolloutWorkflow  # type: ignore[import-not-found]

from ...types import JsonObject
from ..rows import read_group
from .engine import Sampled, TrainerEngine
from .trainer_run import TrainerRun, with_params


class RolloutKitWorkflow(RolloutWorkflow):
    """One rollout for each sample, a row for each of its token sequences. Sampling parameters are
    those of `gconfig`; `keys` are those of `TrainerRun`."""

    def __init__(
        self, gconfig: Any, tokenizer: Any, config_paths: Iterable[str | Path], **keys: Any
    ) -> None:
        self._gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        self._tokenizer = tokenizer
        self._engine: Any = None
        self._run = TrainerRun(TrainerEngine(self._generate, tokenizer), list(config_paths), **keys)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any]:
        self._engine = engine
        heat = {"temperature": self._gconfig.temperature}
        task = with_params(json.loads(data["row"]), heat)
        rollout = await self._run.roll_out(task)
        rows = read_group([rollout]).rows
        size = max(len(row.token_ids) for row in rows)

        def stack(name: str, otherwise: float, kind: Any) -> Any:
            lists = [getattr(row, name) for row in rows]
            padded = [each + [otherwise] * (size - len(each)) for each in lists]
            return torch.tensor(padded, dtype=kind)

        lengths = torch.tensor([len(row.token_ids) for row in rows])
        return {
            "input_ids": stack("token_ids", 0, torch.int32),
            "loss_mask": stack("mask", 0, torch.int32),
            "logprobs": stack("log_probs", 0.0, torch.float32),
            "versions": stack("versions", -1, torch.int32),
            "attention_mask": torch.arange(size)[None] < lengths[:, None],
            "rewards": torch.tensor([rollout.training_reward] * len(rows), dtype=torch.float32),
        }

    async def _generate(self, prompt: list[int], sampling: JsonObject, session: str) -> Sampled:
        limit = sampling.get("max_tokens", self._gconfig.max_new_tokens)
        request = ModelRequest(
            rid=session,
            input_ids=prompt,
            gconfig=self._gconfig.new(
                n_samples=1,
                temperature=sampling["temperature"],
                max_new_tokens=min(limit, self._gconfig.max_new_tokens),
            ),
            tokenizer=self._tokenizer,
        )
        made = await self._engine.agenerate(request)
        reason = "stop" if made.stop_reason == "tool_calls" else made.stop_reason
        told = made.output_versions or ()
        return Sampled(made.output_tokens, made.output_logprobs, reason, token_versions=told)
