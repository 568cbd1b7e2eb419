"""Figures of GPUs by NVML: the real package, without a driver, and with a library that answers as
a driver does."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_kit.rl import gpus, measure_batch

DRIVER = """
#include <string.h>
typedef unsigned long long big;
typedef struct { big total, free, used; } memory;
typedef struct { unsigned gpu, memory; } rates;
#define UNSUPPORTED 3
#define LOST 15
#ifndef COUNT
#define COUNT 2
#endif
static int numbers[] = {0, 1, 2};
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **gpu) {
    if (number == 2) return LOST;
    *gpu = &numbers[number]; return 0;
}
int nvmlDeviceGetUUID(void *gpu, char *name, unsigned size) {
    strncpy(name, *(int *)gpu ? "GPU-bbbb-1" : "GPU-aaaa-0", size); return 0;
}
int nvmlDeviceGetUtilizationRates(void *gpu, rates *found) {
    found->gpu = *(int *)gpu ? 0 : 87; return 0;
}
int nvmlDeviceGetMemoryInfo(void *gpu, memory *found) {
    found->total = 80000000000ull; found->used = *(int *)gpu ? 0 : 20000000000ull; return 0;
}
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts) {
    if (*(int *)gpu) return UNSUPPORTED;
    *milliwatts = 512300; return 0;
}
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *degrees) { *degrees = 61; return 0; }
"""

SHOW = """
import json, logging
from rollout_kit.rl import gpus, measure_batch
logging.basicConfig(format="%(message)s")
gpus.measure_gpus()
print(json.dumps(measure_batch([])))
"""

FIRST = {
    "gpu/0/utilization": 0.87,
    "gpu/0/memory_gb": 20.0,
    "gpu/0/memory_share": 0.25,
    "gpu/0/power_w": 512.3,
    "gpu/0/temperature_c": 61.0,
}

SECOND = {
    "gpu/1/utilization": 0.0,
    "gpu/1/memory_gb": 0.0,
    "gpu/1/memory_share": 0.0,
    "gpu/1/temperature_c": 61.0,
}


def show(folder: Path, **environment: str) -> tuple[dict[str, float], str]:
    """The figures of GPUs in a process that finds the libraries of a folder, and what it says."""
    own = {name: value for name, value in os.environ.items() if name != gpus.VISIBLE}
    own |= {"LD_LIBRARY_PATH": str(folder), **environment}
    ended = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, env=own)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    return {name: each for name, each in figures.items() if "gpu/" in name}, ended.stderr


def build(folder: Path, *options: str) -> Path:
    if not (compiler := shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("there is no C compiler")
    folder.mkdir()
    (folder / "driver.c").write_text(DRIVER)
    library = str(folder / "libnvidia-ml.so.1")
    command = [compiler, "-shared", "-fPIC", *options, "-o", library, str(folder / "driver.c")]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(autouse=True)
def package() -> None:
    pytest.importorskip("pynvml")


def test_each_gpu_has_its_figures(tmp_path: Path) -> None:
    folder = build(tmp_path / "driver")
    assert show(folder) == (FIRST | SECOND, "")
    for asked, expected in [
        ("1", SECOND),
        ("GPU-aaaa", FIRST),
        ("0,1", FIRST | SECOND),
        ("", {}),
        ("-1", {}),
        ("MIG-123", FIRST | SECOND),
    ]:
        assert show(folder, CUDA_VISIBLE_DEVICES=asked) == (expected, ""), asked


def test_a_gpu_that_is_lost_is_said_once(tmp_path: Path) -> None:
    figures, said = show(build(tmp_path / "driver", "-DCOUNT=3"))
    assert figures == FIRST | SECOND
    assert said.splitlines() == ["figures of GPUs are missing: GPU is lost"]


@pytest.mark.skipif(gpus.DRIVER.exists(), reason="there is a driver")
def test_a_machine_without_a_gpu_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus._say_once.cache_clear()
    for _ in range(3):
        assert not any(name.startswith("gpu/") for name in measure_batch([]))
    assert [each.getMessage() for each in caplog.records] == [
        "no figures of GPUs: NVML Shared Library Not Found"
    ]
    assert caplog.records[0].levelno == logging.WARNING
    caplog.clear()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.measure_gpus() == {} and not caplog.records  # nothing is missing


def test_a_machine_with_a_gpu_and_without_the_package_says_how_to_install_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpus, "DRIVER", tmp_path)
    gpus._say_once.cache_clear()
    assert gpus.measure_gpus() == gpus.measure_gpus() == {}
    [said] = [each.getMessage() for each in caplog.records]
    assert said.startswith("no figures of the GPUs: ") and "'rollout-kit[nvml]'" in said
