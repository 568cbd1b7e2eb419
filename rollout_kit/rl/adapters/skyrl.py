"""SkyRL's `GeneratorInterface` on servers of this toolkit: rollouts run in the process of the
trainer and ask SkyRL's inference engines.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return RolloutGenerator(inference_engine_client, tokenizer, ["my.yaml"])

`row` in a row of the data set is the task as JSON. SkyRL's engines tell no version of the weights.
"""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skyrl.train.generators.base import (  # type: ignore[import-not-found]
    GeneratorInput,
    GeneratorInterface,
    GeneratorOutput,
)
from skyrl.train.generators.utils import get_rollout_metrics  # type: ignore[import-not-found]

from ...types import JsonObject, Rollout
from .engine import Sampled, TrainerEngine
from .trainer_run import TrainerRun, read_sequence, with_params

OURS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p")},
    "max_tokens": "max_output_tokens",
}
"""Sampling parameter of SkyRL → create param. The others go to the engine as they are."""


class RolloutGenerator(GeneratorInterface):
    """One rollout for each prompt. Sampling parameters are SkyRL's; `keys` are those of
    `TrainerRun`."""

    def __init__(
        self,
        inference_engine_client: Any,
        tokenizer: Any,
        config_paths: str | Path | Iterable[str | Path],
        **keys: Any,
    ) -> None:
        self._engine = inference_engine_client
        self._more: JsonObject = {}
        """Sampling parameters that are the engine's alone."""
        self.run = TrainerRun(TrainerEngine(self._generate, tokenizer), config_paths, **keys)

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        given = dict(input_batch.get("sampling_params") or {})
        params = {own: given.pop(name) for name, own in OURS.items() if name in given}
        self._more = given
        tasks = [json.loads(each["row"]) for each in input_batch["env_extras"] or ()]
        rollouts = await asyncio.gather(
            *(self.run.roll_out(with_params(task, params)) for task in tasks)
        )
        return _read(rollouts, input_batch)

    async def _generate(self, prompt: list[int], sampling: JsonObject, session: str) -> Sampled:
        made = await self._engine.generate(
            {
                "prompts": None,
                "prompt_token_ids": [prompt],
                "sampling_params": {**self._more, **sampling},
                "session_ids": [session],
                "mm_features": None,
                "cache_salt": None,
            }
        )
        if not (log_probs := made["response_logprobs"]):
            raise ValueError(
                "SkyRL's engine gives no log-probs: generator.sampling_params.logprobs=1"
            )
        return Sampled(made["response_ids"][0], log_probs[0], made["stop_reasons"][0])


def _read(rollouts: list[Rollout], asked: GeneratorInput) -> GeneratorOutput:
    """What SkyRL makes a batch of: prompts without their responses, in the order of the batch."""
    found: dict[str, list[Any]] = {
        name: [] for name in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
    }
    for rollout in rollouts:
        sequence = read_sequence(rollout)
        start = len(sequence.turns[0].added)
        found["prompt_token_ids"].append(sequence.token_ids[:start])
        found["response_ids"].append(sequence.token_ids[start:])
        found["loss_masks"].append([int(each) for each in sequence.is_generated[start:]])
        found["rollout_logprobs"].append(sequence.log_probs[start:])
    rewards = [float(each.training_reward or 0.0) for each in rollouts]
    is_cut = [each.response.get("status") == "incomplete" for each in rollouts]
    masks = found["loss_masks"]
    return GeneratorOutput(
        **found,  # type: ignore[typeddict-item]
        rewards=rewards,
        stop_reasons=["length" if each else "stop" for each in is_cut],
        rollout_metrics=get_rollout_metrics(found["response_ids"], rewards, loss_masks=masks),
        trajectory_ids=asked.get("trajectory_ids"),
        trajectory_generation_times=[each.info.duration_s or 0.0 for each in rollouts],
        rollout_expert_indices=None,
        is_last_step=None,
        env_metrics=None,
        pixel_values=None,
        image_grid_thw=None,
    )
