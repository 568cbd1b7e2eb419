"""What a run may take, and what came of it."""

from dataclasses import asdict, dataclass
from typing import Literal

from ..errors import RolloutKitError
from ..types import JsonObject


class SandboxError(RolloutKitError):
    """The sandbox itself failed: nothing is known of the code that was to run."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds of one run; `time_s` is on the wall clock and for all of its processes together."""

    time_s: float = 10.0
    memory_mb: int = 1024
    """Address space of one process, and what all of a run's processes may hold together."""
    files_mb: int = 64
    """Of all files together, which lie in memory."""
    num_processes: int = 16
    """Threads are counted too."""
    open_files: int = 64
    output_bytes: int = 1 << 20
    """Of standard output, and of a returned value; more ends the run."""

    def to_json(self) -> JsonObject:
        return asdict(self)


End = Literal["finished", "raised", "time", "memory", "output", "died"]
"""How a run ended: by itself, with an exception, at a limit, or by a signal or `os._exit`."""


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """What is known of a run. All but `duration_s` and `cpu_s` is what the code wanted it to be."""

    end: End
    stdout: bytes
    """What it wrote, up to `output_bytes`."""
    answered: bool
    """Whether a called function has returned."""
    value: object
    """What it returned, as JSON has it."""
    error: str
    """The exception, as `repr` has it; empty where there was none."""
    duration_s: float
    cpu_s: float
