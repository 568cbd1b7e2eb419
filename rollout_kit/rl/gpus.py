"""What the GPUs of this machine do, by NVML: the figures that `nvidia-smi` shows.

The package is `nvidia-ml-py` (`rollout-kit[nvml]`). Without a GPU there are no figures, and the
reason is said once.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import how_to_install

log = logging.getLogger(__name__)

DRIVER = Path("/proc/driver/nvidia")

VISIBLE = "CUDA_VISIBLE_DEVICES"


def measure_gpus() -> dict[str, float]:
    """Figures of each GPU that this process may use, by its number on this machine:
    `gpu/0/utilization` and `gpu/0/memory_share` (0 to 1), `gpu/0/memory_gb`, `gpu/0/power_w`,
    `gpu/0/temperature_c`. What a GPU does not tell is left out."""
    try:
        import pynvml  # type: ignore[import-not-found]
    except ImportError:
        if DRIVER.exists():
            _say_once(f"no figures of the GPUs: {how_to_install('rollout-kit[nvml]')}")
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _say_once(f"no figures of GPUs: {error}")
        return {}
    found: dict[str, float] = {}
    try:
        for number in range(pynvml.nvmlDeviceGetCount()):
            found |= _measure(pynvml, number)
    except pynvml.NVMLError as error:  # such as one that fell off the bus
        _say_once(f"figures of GPUs are missing: {error}")
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return found


def _measure(nvml: Any, number: int) -> dict[str, float]:
    gpu = nvml.nvmlDeviceGetHandleByIndex(number)
    if not _is_visible(number, nvml.nvmlDeviceGetUUID(gpu)):
        return {}
    found: dict[str, float] = {}
    for read in (_read_load, _read_memory, _read_power, _read_temperature):
        with suppress(nvml.NVMLError_NotSupported):
            found |= {f"gpu/{number}/{name}": value for name, value in read(nvml, gpu)}
    return found


def _read_load(nvml: Any, gpu: Any) -> Iterator[tuple[str, float]]:
    yield "utilization", nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100


def _read_memory(nvml: Any, gpu: Any) -> Iterator[tuple[str, float]]:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    yield "memory_gb", memory.used / 1e9
    yield "memory_share", memory.used / memory.total


def _read_power(nvml: Any, gpu: Any) -> Iterator[tuple[str, float]]:
    yield "power_w", nvml.nvmlDeviceGetPowerUsage(gpu) / 1000


def _read_temperature(nvml: Any, gpu: Any) -> Iterator[tuple[str, float]]:
    degrees = nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    yield "temperature_c", float(degrees)


def _is_visible(number: int, identity: str | bytes) -> bool:
    """Whether this process may use the GPU, as CUDA_VISIBLE_DEVICES says by numbers or names."""
    if (given := os.environ.get(VISIBLE)) is None:
        return True
    name = identity.decode() if isinstance(identity, bytes) else identity
    asked = [each.strip() for each in given.split(",")]
    if any(each.startswith("MIG-") for each in asked):  # parts of GPUs, which have other names
        return True
    return any(each == str(number) or (each and name.startswith(each)) for each in asked)


@cache
def _say_once(text: str) -> None:
    log.warning(text)
