"""Interpreters of other tools, each in an environment of its own."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {
    "openenv": ".openenv",
    **{name: f".peers/{name}" for name in ("harbor", "inspect", "datasets")},
}
"""Where `make` installs each of them."""


def folder_of(name: str) -> Path:
    """The `bin` folder of a tool; `make compat` names another one in PEER_<NAME>."""
    given = os.environ.get(f"PEER_{name.upper()}")
    return (Path(given) if given else ROOT / FOLDERS[name]) / "bin"
