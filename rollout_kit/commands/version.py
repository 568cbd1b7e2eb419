"""ng_version: print the versions for a bug report."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version

from .._version import __version__
from ..config.keys import InspectConfig
from . import entry

DEPENDENCIES = (
    "fastapi",
    "httptools",
    "hydra-core",
    "omegaconf",
    "orjson",
    "pydantic",
    "uvicorn",
    "uvloop",
)
"""Packages that have caused version-dependent bugs."""


def main(words: list[str]) -> int:
    wanted = entry.parse_keys(words, InspectConfig)
    found = {
        "rollout_kit": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "dependencies": {name: _get_version(name) for name in DEPENDENCIES},
    }
    if wanted.json_output:
        print(json.dumps(found))
        return 0
    for key in ("rollout_kit", "python", "platform"):
        print(f"{key}: {found[key]}")
    for name, number in found["dependencies"].items():
        print(f"{name}: {number}")
    return 0


def _get_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
