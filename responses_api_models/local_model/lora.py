"""LoRA adapters, added to the weights when a checkpoint is converted."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rollout_kit.errors import ConfigError

FILES = ("adapter_config.json", "adapter_model.safetensors")

PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"

UNSUPPORTED = ("use_dora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern")
"""Settings of adapters that only `ng_merge_lora` can merge."""


def add_adapter(
    weights: Mapping[str, np.ndarray], adapter: Path, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights with the adapter's `tensors` added; ConfigError if they do not fit."""
    config = json.loads((adapter / FILES[0]).read_text("utf-8"))
    used = [name for name in UNSUPPORTED if config.get(name)]
    if config.get("peft_type") != "LORA" or used:
        what = ", ".join(used) or f"peft_type {config.get('peft_type')}"
        raise ConfigError(f"{adapter}: {what} cannot be served here; try ng_merge_lora")
    rank = math.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
    found = dict(weights)
    for name, down in tensors.items():
        if name.endswith(UP):
            continue
        module = name.removesuffix(DOWN)
        up = tensors.get(module + UP)
        changed = f"{module.removeprefix(PREFIX)}.weight"
        if not name.endswith(DOWN) or up is None:
            raise ConfigError(f"{adapter}: {name} cannot be served here; try ng_merge_lora")
        if changed not in found or found[changed].shape != (up.shape[0], down.shape[1]):
            raise ConfigError(f"{adapter} does not fit the checkpoint: it changes {changed}")
        found[changed] = found[changed] + config["lora_alpha"] / rank * (up @ down)
    return found
