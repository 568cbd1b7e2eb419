"""The GPUs of each replica."""

import os
import subprocess
from pathlib import Path

from rollout_kit.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"

DRIVER = Path("/proc/driver/nvidia/gpus")


def visible() -> list[str]:
    """The names of the GPUs that this process may use."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return [each.strip() for each in given.split(",") if each.strip() not in ("", "-1")]
    if DRIVER.is_dir():
        return [str(number) for number, _ in enumerate(DRIVER.iterdir())]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(number) for number, _ in enumerate(lines)]


def shares(num_replicas: int, num_each: int, gpus: list[str]) -> list[dict[str, str]]:
    """The GPU variables of each replica's environment; empty if there are no GPUs, or if one
    replica may use all. ConfigError if there are too few."""
    if num_replicas == 1 or not gpus:
        return [{} for _ in range(num_replicas)]
    if num_replicas * num_each > len(gpus):
        raise ConfigError(
            f"num_replicas={num_replicas} of {num_each} GPUs each need {num_replicas * num_each},"
            f" and {len(gpus)} are visible ({','.join(gpus)})"
        )
    return [
        {VARIABLE: ",".join(gpus[first : first + num_each])}
        for first in range(0, num_replicas * num_each, num_each)
    ]
