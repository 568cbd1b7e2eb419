"""Parse `gpus`: a number of GPUs and their memory."""

import re
import shutil
import subprocess
from dataclasses import dataclass

from ...errors import ConfigError

MIB = 1 << 20

MEMORY_MIB = {
    "A10G": 23_028,
    "A100-40GB": 40_960,
    "A100": 81_920,
    "B200": 183_359,
    "GH200": 97_871,
    "H100": 81_559,
    "H200": 143_771,
    "H20": 97_871,
    "L4": 23_034,
    "L40S": 46_068,
    "RTX4090": 24_564,
    "T4": 15_360,
    "V100": 32_768,
}
"""Card → memory as nvidia-smi shows it."""

GIVEN = re.compile(
    r"(?:(?P<number>\d+)\s*[x*×]\s*)?(?P<what>[A-Za-z][\w-]*|\d+(?:\.\d+)?\s*[Gg]?[Ii]?[Bb]?)"
)
BYTES = re.compile(r"(?P<size>\d+(?:\.\d+)?)\s*(?P<unit>gib|gb)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpus:
    number: int
    label: str
    memory: int
    """Bytes per GPU."""


def read(given: str | None) -> Gpus:
    """Parse `4xH100`, `2x80GB`, `H200`, `80GB`, or `8` for this machine's; else ConfigError."""
    if given is None or given.strip().isdigit():
        return _query_this_machine(int(given) if given else None)
    found = GIVEN.fullmatch(given.strip())
    if not found or found["number"] == "0":
        raise ConfigError(f"gpus: cannot parse '{given}'; write +gpus=4xH100 or +gpus=2x80GB")
    number, what = int(found["number"] or 1), found["what"]
    if size := BYTES.fullmatch(what):
        is_binary = (size["unit"] or "").lower() == "gib"
        label = f"{size['size']} {'GiB' if is_binary else 'GB'}"
        return Gpus(number, label, int(float(size["size"]) * (1 << 30 if is_binary else 10**9)))
    for name, mib in MEMORY_MIB.items():
        if name.lower() == what.lower():
            return Gpus(number, name, mib * MIB)
    raise ConfigError(
        f"gpus: unknown GPU '{what}'; give its memory, as +gpus={number}x80GB. Known: "
        + ", ".join(MEMORY_MIB)
    )


def _query_this_machine(number: int | None) -> Gpus:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    if not shutil.which(query[0]):
        raise ConfigError("gpus: this machine has none; give them: +gpus=4xH100 or +gpus=2x80GB")
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    if not lines:
        raise ConfigError("gpus: nvidia-smi shows none; give them: +gpus=4xH100 or +gpus=2x80GB")
    name, _, mib = lines[0].rpartition(",")
    return Gpus(number or len(lines), name.strip(), int(mib) * MIB)
