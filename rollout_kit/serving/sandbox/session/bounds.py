"""Limits of a session, and what a command in it gave."""

from dataclasses import asdict, dataclass

from ....types import JsonObject
from ..limits import SandboxError


class SessionEnded(SandboxError):
    """The session is over: at its time limit, because it was closed, or its process was killed."""


class SessionRefused(ValueError):
    """The session cannot do what was asked; the text is for the model."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of a session as a whole, all its processes together."""

    time_s: float = 3600.0
    """Wall-clock time, after which the session ends."""
    memory_mb: int = 2048
    """What its processes hold and what waits in its sockets; above it, all of them are killed. Its
    files do not count. No process has more data than this."""
    disk_mb: int = 1024
    """All that it writes; its files are kept in memory."""
    num_processes: int = 256
    """Includes threads."""
    open_files: int = 1024
    """Of each process."""

    def to_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. `status` is its exit status, negative for a signal."""

    status: int
    stdout: str
    stderr: str
    ended_by: str
    """Empty, or the limit that ended it: `time`, `output` or `memory`."""
    duration_s: float
