"""The memory of a training for each GPU, in bytes, part by part.

Mixed precision: weights and gradients in bfloat16, and for each trained parameter a float32 copy
with what the optimizer keeps. ZeRO 1 divides the optimizer among the GPUs, 2 the gradients too, 3
(and FSDP's full sharding) the weights too, of frozen models as well. Activations are those of
layers with an attention that keeps no matrix of scores. Temporary buffers and fragmentation are
not in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..plan_vllm.architecture import get_text_part

WEIGHT, GRADIENT, MASTER = 2, 2, 4
"""Bytes of a parameter: bfloat16, its gradient, and the float32 copy that is updated."""

KEPT_BY: Mapping[str, int] = {"adamw": 8, "adamw_8bit": 2, "sgd": 0}
"""Bytes that an optimizer keeps of each parameter, in addition to the float32 copy."""

LAYER_BYTES = 34
"""Bytes of activations of a layer for each token and hidden value, without recomputation."""

INPUT_BYTES = 2
"""The same with recomputation: only the input of the layer is kept."""

LOGIT_BYTES = 2 + 4
"""For each token and entry of the vocabulary: bfloat16, and float32 in the loss."""

TRAINED: Mapping[str, tuple[str, ...]] = {
    "sft": ("policy",),
    "dpo": ("policy",),
    "grpo": ("policy",),
    "ppo": ("policy", "critic"),
}
"""Algorithm → models that are trained."""

FROZEN: Mapping[str, tuple[str, ...]] = {
    "sft": (),
    "dpo": ("reference",),
    "grpo": ("reference",),
    "ppo": ("reference", "reward model"),
}
"""Algorithm → models that only compute."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What determines the memory of a model."""

    num_params: int
    num_layers: int
    hidden: int
    vocabulary: int

    @classmethod
    def of(cls, num_params: int, config: Mapping[str, Any]) -> "Shape":
        text = get_text_part(config)
        return cls(num_params, text["num_hidden_layers"], text["hidden_size"], text["vocab_size"])


@dataclass(frozen=True, slots=True)
class TrainingSetting:
    """How a training is made."""

    zero: int = 0
    num_gpus: int = 1
    optimizer: str = "adamw"
    lora_rank: int | None = None
    offload: Literal["none", "optimizer", "all"] = "none"
    micro_batch: int = 1
    tokens: int = 2048
    recomputes: bool = True

    def divide(self, number: int, from_stage: int) -> float:
        """The part of one GPU, if the ZeRO stage divides this among all."""
        return number / (self.num_gpus if self.zero >= from_stage else 1)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One line of a plan. `on_cpu`: it is in the memory of the host."""

    model: str
    what: str
    bytes: float
    on_cpu: bool = False


def list_trained(name: str, shape: Shape, setting: TrainingSetting) -> Iterator[MemoryPart]:
    """The parts of a model that is trained."""
    trained = shape.num_params
    if setting.lora_rank is not None:
        # two matrices for each of the seven of a layer, whose sides are about the hidden size
        trained = shape.num_layers * 7 * 2 * shape.hidden * setting.lora_rank
        frozen = setting.divide(WEIGHT * shape.num_params, 3)
        yield MemoryPart(name, "frozen weights", frozen, setting.offload == "all")
    what = "weights" if setting.lora_rank is None else "adapter"
    on_cpu, optimizer_on_cpu = setting.offload == "all", setting.offload != "none"
    yield MemoryPart(name, what, setting.divide(WEIGHT * trained, 3), on_cpu)
    yield MemoryPart(name, "gradients", setting.divide(GRADIENT * trained, 2), on_cpu)
    kept = MASTER + KEPT_BY[setting.optimizer]
    yield MemoryPart(name, "optimizer", setting.divide(kept * trained, 1), optimizer_on_cpu)


def list_frozen(name: str, shape: Shape, setting: TrainingSetting) -> Iterator[MemoryPart]:
    """The parts of a model that only computes. With LoRA the reference is the policy without its
    adapter."""
    if name == "reference" and setting.lora_rank is not None:
        yield MemoryPart(name, "the policy without its adapter", 0.0)
    else:
        size = setting.divide(WEIGHT * shape.num_params, 3)
        yield MemoryPart(name, "weights", size, setting.offload == "all")


def measure_activations(shape: Shape, setting: TrainingSetting) -> float:
    """Bytes of activations of one step over a micro-batch."""
    tokens = setting.micro_batch * setting.tokens
    one_layer = LAYER_BYTES * tokens * shape.hidden
    logits = LOGIT_BYTES * tokens * shape.vocabulary
    if not setting.recomputes:
        return shape.num_layers * one_layer + logits
    return shape.num_layers * INPUT_BYTES * tokens * shape.hidden + one_layer + logits


def list_parts(
    algorithm: str, shapes: Mapping[str, Shape], setting: TrainingSetting
) -> list[MemoryPart]:
    """Everything that a GPU holds while it trains. Models are trained one after the other, so the
    activations are those of the largest."""
    found: list[MemoryPart] = []
    for name in TRAINED[algorithm]:
        found += list_trained(name, shapes[name], setting)
    for name in FROZEN[algorithm]:
        if name in shapes:
            found += list_frozen(name, shapes[name], setting)
    largest = max(measure_activations(shapes[name], setting) for name in TRAINED[algorithm])
    return [*found, MemoryPart("", "activations", largest)]
