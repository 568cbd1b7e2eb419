"""Interpreters of other tools, each in an environment of its own."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {
    "openenv": ".openenv",
    "verifiers": ".verifiers",
    **{name: f".peers/{name}" for name in ("harbor", "inspect", "datasets", "lm-eval", "nemo-gym")},
}
"""Where `make` installs each of them."""


def folder_of(name: str) -> Path:
    """The `bin` folder of a tool; `make compat` names another one in PEER_<NAME>."""
    given = os.environ.get(f"PEER_{name.upper().replace('-', '_')}")
    return (Path(given) if given else ROOT / FOLDERS[name]) / "bin"
