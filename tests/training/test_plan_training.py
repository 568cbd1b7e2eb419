"""The memory of a training, against published figures and by hand."""

import json
from typing import Any

import pytest

from rollout_kit.authoring.plan_training.memory import Shape, TrainingSetting, list_parts
from rollout_kit.authoring.plan_training.training_plan import format_plan, plan
from rollout_kit.commands import plan_training
from rollout_kit.config.keys import PlanTrainingConfig

GB = 1e9

SEVEN = Shape(7_000_000_000, 32, 4096, 32_000)


def measure(algorithm: str, shape: Shape = SEVEN, **setting: Any) -> dict[str, float]:
    """GB of each part."""
    shapes = dict.fromkeys(("policy", "critic", "reference", "reward model"), shape)
    parts = list_parts(algorithm, shapes, TrainingSetting(**setting))
    return {f"{part.model} {part.what}".strip(): part.bytes / GB for part in parts}


@pytest.mark.parametrize(("zero", "published"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_stages_of_zero_are_those_of_its_paper(zero: int, published: float) -> None:
    """DeepSpeed, "ZeRO: Memory Optimizations", figure 1: 7.5 billion parameters on 64 GPUs."""
    shape = Shape(7_500_000_000, 32, 4096, 32_000)
    found = measure("sft", shape, zero=zero, num_gpus=64)
    states = sum(found.values()) - found["activations"]
    assert states == pytest.approx(published, abs=0.06)


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        (Shape(6_740_000_000, 32, 4096, 32_000), 16.0),
        (Shape(13_020_000_000, 40, 5120, 32_000), 32.0),
    ],
)
def test_lora_is_near_the_table_of_llama_factory(shape: Shape, published: float) -> None:
    """Its README, "Hardware Requirement": LoRA in 16 bits. The figures there are estimates, rounded
    up."""
    found = sum(measure("sft", shape, lora_rank=8, tokens=2048).values())
    assert 0.8 * published < found <= published


def test_a_ppo_as_users_write_it_down() -> None:
    """7 billion parameters: each model has 14 GB of weights. AdamW keeps 56 GB of each trained
    model in float32, and 28 GB are the float32 copy."""
    found = measure("ppo")
    for model in ("policy", "critic", "reference", "reward model"):
        assert found[f"{model} weights"] == 14
    for model in ("policy", "critic"):
        assert found[f"{model} optimizer"] == 28 + 56
        assert found[f"{model} gradients"] == 14
    few = measure("ppo", optimizer="adamw_8bit", lora_rank=16)
    assert few["reference the policy without its adapter"] == 0
    assert few["policy optimizer"] < 0.4


def test_activations_by_hand() -> None:
    tokens = 2 * 1000
    whole = measure("sft", recomputes=False, micro_batch=2, tokens=1000)["activations"]
    assert whole * GB == 32 * 34 * tokens * 4096 + 6 * tokens * 32_000
    few = measure("sft", micro_batch=2, tokens=1000)["activations"]
    assert few * GB == 32 * 2 * tokens * 4096 + 34 * tokens * 4096 + 6 * tokens * 32_000


def test_what_is_kept_by_the_host_is_not_on_the_gpu() -> None:
    asked = {"model_name": "Qwen/Qwen2.5-7B-Instruct", "num_gpus": 8, "zero": 2}
    here = plan(PlanTrainingConfig.model_validate(asked))
    there = plan(PlanTrainingConfig.model_validate({**asked, "offload": "optimizer"}))
    assert here.on_cpu == 0 < there.on_cpu
    assert here.training == pytest.approx(there.training + there.on_cpu)


def test_a_policy_that_generates_elsewhere_needs_its_weights_only() -> None:
    asked = {"model_name": "Qwen/Qwen2.5-7B-Instruct", "placement": "apart"}
    made = plan(PlanTrainingConfig.model_validate(asked))
    assert made.generating / GB == pytest.approx(15.2, abs=0.1)
    assert "Try +lora_rank=16" in format_plan(made)[-1]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+model_name=Qwen/Qwen2.5-7B-Instruct", "+num_gpus=8", "+zero=3", "+json=true"]
    assert plan_training.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["training_gb"] == 19.66 and found["generating_gb"] == 19.04
    assert plan_training.main(["+model_name=Qwen/Qwen2.5-7B-Instruct"]) == 1
    assert "does not fit into 80 GB" in capsys.readouterr().out
