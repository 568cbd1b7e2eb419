"""A plan of a training's memory: what each GPU holds while it trains, and while it generates."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ...config.keys import PlanTrainingConfig
from ...types import JsonObject
from ..plan_vllm.checkpoint import find
from .memory import FROZEN, TRAINED, WEIGHT, MemoryPart, Shape, TrainingSetting, list_parts

GB = 1e9


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """`generating` is what a GPU holds besides the keys and values while the policy generates."""

    asked: PlanTrainingConfig
    parts: list[MemoryPart]
    generating: float

    @property
    def training(self) -> float:
        """Bytes that a GPU holds while it trains."""
        return sum(part.bytes for part in self.parts if not part.on_cpu)

    @property
    def on_cpu(self) -> float:
        """Bytes in the memory of the host, for each GPU."""
        return sum(part.bytes for part in self.parts if part.on_cpu)

    @property
    def fits(self) -> bool:
        return max(self.training, self.generating) <= self.asked.gpu_gb * GB

    def to_json(self) -> JsonObject:
        return {
            "parts": [asdict(part) for part in self.parts],
            "training_gb": round(self.training / GB, 2),
            "generating_gb": round(self.generating / GB, 2),
            "on_cpu_gb": round(self.on_cpu / GB, 2),
            "gpu_gb": self.asked.gpu_gb,
            "fits": self.fits,
        }


def plan(asked: PlanTrainingConfig) -> TrainingPlan:
    """The plan of a command; ConfigError for a model that is not known."""
    setting = TrainingSetting(
        zero=asked.zero,
        num_gpus=asked.num_gpus,
        optimizer=asked.optimizer,
        lora_rank=asked.lora_rank,
        offload=asked.offload,
        micro_batch=asked.micro_batch,
        tokens=asked.tokens,
        recomputes=asked.recompute,
    )
    shapes = _find_shapes(asked)
    parts = list_parts(asked.algorithm, shapes, setting)
    engine = WEIGHT * shapes["policy"].num_params / asked.num_gpus
    if asked.placement == "colocated":  # the training state stays where it is
        engine += sum(p.bytes for p in parts if not p.on_cpu and p.what != "activations")
    return TrainingPlan(asked, parts, engine)


def _find_shapes(asked: PlanTrainingConfig) -> Mapping[str, Shape]:
    names = {"policy": asked.model_name, "critic": asked.critic_model_name or asked.model_name}
    names |= {"reference": asked.model_name}
    names |= {"reward model": asked.reward_model_name or asked.model_name}
    used = {*TRAINED[asked.algorithm], *FROZEN[asked.algorithm]}
    if not asked.has_reference:
        used.discard("reference")
    found = {name: find(model) for name, model in names.items() if name in used}
    return {name: Shape.of(each.num_params, each.config) for name, each in found.items()}


def format_plan(made: TrainingPlan) -> list[str]:
    """The plan in lines for people."""
    asked = made.asked
    lines = [f"{asked.algorithm} of {asked.model_name} on {asked.num_gpus} GPUs, for each GPU:"]
    for part in made.parts:
        where = "  in the host's memory" if part.on_cpu else ""
        name = f"{part.model} {part.what}".strip()
        lines.append(f"  {name:40} {part.bytes / GB:9.2f} GB{where}")
    verdict = "fits" if made.fits else "does not fit"
    lines.append(f"  {'while it trains':40} {made.training / GB:9.2f} GB")
    engine = f"while it generates ({asked.placement})"
    lines.append(f"  {engine:40} {made.generating / GB:9.2f} GB, and keys and values")
    lines.append(f"It {verdict} into {asked.gpu_gb:g} GB.")
    if not made.fits:
        lines.append(_advise(asked))
    return lines


def _advise(asked: PlanTrainingConfig) -> str:
    """The next thing to try."""
    if asked.zero < 3 and asked.num_gpus > 1:
        return f"Try +zero={asked.zero + 1}, which divides more among the GPUs."
    if asked.lora_rank is None:
        return "Try +lora_rank=16, more GPUs with +zero=3, or +offload=optimizer."
    return "Try a smaller model, +micro_batch=1, or +offload=all."
