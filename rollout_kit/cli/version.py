"""ng_version: what a bug report needs to say."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from .. import __version__
from ..config.keys.commands import InspectConfig
from .entry import flags, guarded

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
"""Packages whose version has explained a bug before."""


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(guarded("ng_version", arguments, lambda: show(arguments)))


def show(arguments: list[str]) -> int:
    wanted = flags(arguments, InspectConfig)
    found = {
        "rollout_kit": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "dependencies": {name: _version(name) for name in DEPENDENCIES},
    }
    if wanted.json_output:
        print(json.dumps(found))
        return 0
    for key in ("rollout_kit", "python", "platform"):
        print(f"{key}: {found[key]}")
    for name, number in found["dependencies"].items():
        print(f"{name}: {number}")
    return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
