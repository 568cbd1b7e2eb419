"""LoRA adapters for tests: files as PEFT writes them, without torch."""

import json
import random
import struct
from array import array
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

TINY = Path(__file__).parents[2] / "responses_api_models/local_model/checkpoint"
RANK = 2
MODULE = "base_model.model.model.layers.{layer}.self_attn.q_proj"


def write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]], scale: float = 0) -> None:
    """Tensors of these shapes in float32; their values are drawn from ±scale."""
    header: dict[str, Any] = {}
    data, drawn = array("f"), random.Random(0)
    for name, shape in shapes.items():
        start = 4 * len(data)
        data.extend(drawn.uniform(-scale, scale) for _ in range(prod(shape)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, 4 * len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data.tobytes())


def shapes_of(*, layers: int = 4, size: int = 128) -> dict[str, tuple[int, ...]]:
    """Those of a LoRA on the tiny model's query projections."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        module = MODULE.format(layer=layer)
        found |= {f"{module}.lora_A.weight": (RANK, size), f"{module}.lora_B.weight": (size, RANK)}
    return found


def write_adapter(
    folder: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    scale: float = 0.3,
    **settings: Any,
) -> Path:
    """An adapter of the tiny model's query projections."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": RANK,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        **settings,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / "adapter_model.safetensors", shapes or shapes_of(), scale)
    return folder
