"""As far as a CPU goes: SkyRL reads the settings and the data, our generator makes rollouts with
the tiny model in place of SkyRL's engines, and SkyRL makes a batch of them, with its advantages and
its loss.

python examples/skyrl/check.py [--folder results/skyrl]
"""
# ruff: noqa: E402 (SkyRL is imported once `TypedDict` is one that it can use)

import argparse
import asyncio
import sys
import typing
from pathlib import Path
from typing import Any

import numpy
import torch
import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # which SkyRL needs on Python 3.11
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from skyrl.backends.skyrl_train.inference_servers.engine_utils import (
    get_sampling_params_for_backend,
)
from skyrl.backends.skyrl_train.utils.ppo_utils import (
    PolicyLossRegistry,
    apply_loss_reduction_to_advantages_minibatch,
    compute_advantages_and_returns,
)
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.base import GeneratorOutput
from skyrl.train.generators.utils import (
    get_metrics_from_generator_output,
    prepare_generator_input,
)
from tiny_engine import TinyEngine

from rollout_kit.rl.adapters.skyrl import RolloutGenerator

CONFIGS = [
    "responses_api_models/trainer_model/configs/trainer_model.yaml",
    "resources_servers/math_with_verify/configs/math_with_verify.yaml",
    "resources_servers/calculator/configs/calculator.yaml",
]

TASKS, MEMBERS = 8, 4

MOST_TOKENS = 96


class PlayedClient:
    """SkyRL's client of its engines, as far as a generator asks it."""

    def __init__(self) -> None:
        self.engine = TinyEngine()

    async def generate(self, asked: Any) -> Any:
        params = asked["sampling_params"]
        answers = [
            self.engine.generate(prompt, params["temperature"], params["max_tokens"])
            for prompt in asked["prompt_token_ids"]
        ]
        return {
            "responses": [self.engine.tokenizer.decode(each.token_ids) for each in answers],
            "response_ids": [each.token_ids for each in answers],
            "stop_reasons": [each.finish_reason for each in answers],
            "response_logprobs": [each.log_probs for each in answers],
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("results/skyrl"))
    args = parser.parse_args()
    settings = (Path(__file__).parent / "settings.txt").read_text().split()
    settings.append(f"data.train_data=['{args.folder}/train.jsonl']")
    settings.append(f"generator.sampling_params.max_generate_length={MOST_TOKENS}")
    config = SkyRLTrainConfig.from_cli_overrides(settings)
    client = PlayedClient()
    data = PromptDataset(
        config.data.train_data, client.engine.tokenizer, config.trainer.max_prompt_length, 1
    )
    print(f"settings: all {len(settings)} are known; data: {len(data):,} tasks")
    every = len(data) // TASKS
    prompts = data.collate_fn([data[at * every] for at in range(TASKS)])
    sampling = get_sampling_params_for_backend("vllm", config.generator.sampling_params)
    asked, uids = prepare_generator_input(prompts, MEMBERS, sampling, "rollout_kit", "train", 0)
    made = asyncio.run(roll_out(client, asked))
    metrics = get_metrics_from_generator_output(made, uids)
    loss, figures = compute_loss(client.engine.tokenizer, made, uids, config.trainer.algorithm)
    assert torch.isfinite(loss)
    masked = sum(0 in mask for mask in made["loss_masks"])
    print(f"{len(uids)} rollouts, {masked} of them with outputs of tools; reward {metrics}")
    print(f"loss {float(loss):+.4f}, {figures}")


async def roll_out(client: PlayedClient, asked: Any) -> GeneratorOutput:
    generator = RolloutGenerator(client, client.engine.tokenizer, CONFIGS)
    made = await generator.generate(asked)
    await generator.run.close()
    return made


def compute_loss(
    tokenizer: Any, made: GeneratorOutput, uids: list[str], algorithm: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """By SkyRL's own code. The reward of a rollout is that of its last token, as in its trainer."""
    rewards = [
        [0.0] * (len(response) - 1) + [reward]
        for response, reward in zip(made["response_ids"], made["rewards"], strict=True)
    ]
    _, _, response_mask, token_rewards, loss_mask, old, _ = (
        convert_prompts_responses_to_batch_tensors(
            tokenizer,
            made["prompt_token_ids"],
            made["response_ids"],
            rewards,
            made["loss_masks"],
            made["rollout_logprobs"],
        )
    )
    advantages, _ = compute_advantages_and_returns(
        token_level_rewards=token_rewards,
        response_mask=response_mask,
        index=numpy.array(uids),
        adv_estimator=algorithm.advantage_estimator,
        config=algorithm,
        grpo_norm_by_std=algorithm.grpo_norm_by_std,
    )
    advantages = apply_loss_reduction_to_advantages_minibatch(
        advantages, loss_mask, algorithm.loss_reduction, len(uids), algorithm.max_seq_len
    )
    loss_of = PolicyLossRegistry.get(algorithm.policy_loss_type)
    return loss_of(old, old, advantages, config=algorithm, loss_mask=loss_mask)


if __name__ == "__main__":
    main()
