"""Steps of a trainer for tests: the tiny model, a little more certain in each version."""

import json
from pathlib import Path

import numpy as np

from rollout_kit.rl import CheckpointManager

CHECKPOINT = Path(__file__).parents[2] / "responses_api_models/local_model/checkpoint"

ON_A_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Environment of a real vLLM that runs without a GPU."""


def write_step(folder: Path, version: int) -> Path:
    with CheckpointManager(folder, keep_last=1000, base=CHECKPOINT).write(version) as step:
        raw = bytearray((CHECKPOINT / "model.safetensors").read_bytes())
        length = int.from_bytes(raw[:8], "little")
        about = json.loads(raw[8 : 8 + length])["model.norm.weight"]
        begin, end = (8 + length + each for each in about["data_offsets"])
        assert about["dtype"] == "BF16"
        wide = np.frombuffer(raw, "<u2", (end - begin) // 2, begin).astype("<u4") << 16
        changed = wide.view("<f4") * np.float32(1 + 0.03 * version)
        raw[begin:end] = (changed.view("<u4") >> 16).astype("<u2").tobytes()
        (step / "model.safetensors").write_bytes(raw)
    return folder / f"step_{version}"
