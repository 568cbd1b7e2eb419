"""What closes the loop between rollouts and a trainer: versions of weights, and rows to train on.

What this module exports is public; each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {"CheckpointManager": "weights.checkpoints"}
"""Public name → the module of this package that defines it."""

if TYPE_CHECKING:
    from .weights.checkpoints import CheckpointManager as CheckpointManager


def __getattr__(name: str) -> Any:
    """Import a public name from its module; later uses find it here."""
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'rollout_kit.rl' has no attribute '{name}'")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
