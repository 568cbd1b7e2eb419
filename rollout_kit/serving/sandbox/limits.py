"""Limits of a run in the sandbox, and its result."""

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Literal

from ...errors import RolloutKitError
from ...types import JsonObject


class SandboxError(RolloutKitError):
    """The sandbox itself failed; this says nothing about the submitted code.

    Example (needs namespaces):

        async with rk.Sandbox(1) as sandbox:
            try:
                await sandbox.run("print(2 + 2)")
            except rk.SandboxError as error:
                print(error)
    """


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one run; `time_s` is wall-clock time and covers all its processes.

    Example:

        print(rk.SandboxLimits(time_s=2.0, memory_mb=256).time_s)
    """

    time_s: float = 10.0
    cpu_s: int | None = None
    """CPU time of each process; None leaves the end to `time_s`."""
    memory_mb: int = 1024
    """Address space of each process, and what a run holds together: memory of its processes, its
    files, and what waits in its sockets."""
    files_mb: int = 64
    """Total size of all files; they are kept in memory."""
    num_processes: int = 16
    """Includes threads."""
    open_files: int = 32
    """Of each process."""
    output_bytes: int = 1 << 20
    """Limit on standard output and on the returned value; exceeding it ends the run."""

    def to_json(self) -> JsonObject:
        """What the zygote is told, and so each run: not `output_bytes`, which may tell how long the
        right output is."""
        return {name: most for name, most in asdict(self).items() if name != "output_bytes"}


End = Literal["finished", "raised", "time", "cpu", "memory", "output", "died", "left"]
"""How a run ended: normally, with an exception, at a limit, or by a signal or `os._exit`; or it
left open sockets behind that no process has, which only the kernel can close."""


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """Result of a run. The code can forge every field except `duration_s` and `cpu_s`.

    Example:

        run = rk.SandboxRun("finished", b"4", False, None, None, "", 0.1, 0.1)
        print(run.end, run.stdout)
    """

    end: End
    stdout: bytes
    """Standard output, up to `output_bytes`."""
    answered: bool
    """Whether the called function returned."""
    value: object
    """The returned value, decoded from JSON with `read_integer`."""
    number: float | None
    """The returned value as float, if the code could convert it."""
    error: str
    """`repr` of the exception; empty if there was none."""
    duration_s: float
    cpu_s: float


MAX_DIGITS = 4_300
"""Python reads no longer integer, because that takes time with the square of the length."""


def read_integer(text: str) -> int | Decimal:
    """Return an integer of JSON; a long one is a Decimal, which takes no more time than its length.

    The two kinds compare with each other and with floats by value.
    """
    return int(text) if len(text) <= MAX_DIGITS else Decimal(text)
