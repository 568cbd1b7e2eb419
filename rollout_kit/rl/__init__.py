"""What closes the loop between rollouts and a trainer: the buffer, versions of weights, and rows to
train on.

What this module exports is public; each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = {
    "Buffer": "buffer.buffer",
    "BufferPolicy": "buffer.policy",
    "BufferedGroup": "buffer.group",
    "BatchAlarms": "alarms",
    "CheckpointManager": "weights.checkpoints",
    "ExperienceBuffer": "buffer.experience",
    "GroupBatch": "buffer.group",
    "InferenceEngine": "inference",
    "MemoryBuffer": "buffer.memory",
    "PhaseTimer": "phases",
    "Phases": "placement",
    "add_reference": "reference",
    "check_tokens": "checking",
    "collect": "producing.collecting",
    "measure_batch": "monitoring",
    "open_buffer": "buffer.opening",
    "read_group": "rows",
    "score_with": "reference",
    "serve_buffer": "buffer.http",
}
"""Public name → the module of this package that defines it."""

if TYPE_CHECKING:
    from .alarms import BatchAlarms as BatchAlarms
    from .buffer.buffer import Buffer as Buffer
    from .buffer.experience import ExperienceBuffer as ExperienceBuffer
    from .buffer.group import BufferedGroup as BufferedGroup
    from .buffer.group import GroupBatch as GroupBatch
    from .buffer.http import serve_buffer as serve_buffer
    from .buffer.memory import MemoryBuffer as MemoryBuffer
    from .buffer.opening import open_buffer as open_buffer
    from .buffer.policy import BufferPolicy as BufferPolicy
    from .checking import check_tokens as check_tokens
    from .inference import InferenceEngine as InferenceEngine
    from .monitoring import measure_batch as measure_batch
    from .phases import PhaseTimer as PhaseTimer
    from .placement import Phases as Phases
    from .producing.collecting import collect as collect
    from .reference import add_reference as add_reference
    from .reference import score_with as score_with
    from .rows import read_group as read_group
    from .weights.checkpoints import CheckpointManager as CheckpointManager


def __getattr__(name: str) -> Any:
    """Import a public name from its module; later uses find it here."""
    if (home := _MODULES.get(name)) is None:
        raise AttributeError(f"module 'rollout_kit.rl' has no attribute '{name}'")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
