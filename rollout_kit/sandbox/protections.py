"""What keeps code from doing harm on this machine: tried out, never guessed.

A run of the sandbox itself tries what no run may do, and says what it could.
"""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .limits import SandboxLimits, SandboxRun

ESSENTIAL = {
    "no network": "reaches nothing, not even this machine",
    "contained processes": "sees and signals its own processes only, and all of them end with it",
    "hidden files": "reads nothing but the interpreter, so no secret either",
    "unwritable files": "writes to its own empty folder only",
    "limits": "CPU, memory, file size, processes, open files",
}
"""Without one of these no code is run, unless told so; what each means for a run."""

FURTHER = {
    "closed environment": "finds no variable of this process",
    "no privileges": "has no capability, and can gain none",
    "filtered system calls": "rarely used corners of the kernel say no",
}

PROBE = """
import os, resource, socket

def tried(act):
    try:
        act()
    except (OSError, ValueError):
        return False
    return True

def probe(port, folder, process, secret):
    reached = tried(lambda: socket.create_connection(("127.0.0.1", port), 1))
    reached = reached or tried(lambda: socket.create_connection(("192.0.2.1", 9), 0.2))
    read = tried(lambda: open(folder + "/secret").read())
    read = read or tried(lambda: open(f"/proc/{process}/environ", "rb").read())
    places = [os.path.dirname(os.__file__), "/", "/var/tmp", "/usr/lib"]
    wrote = tried(lambda: open(folder + "/planted", "w").close())
    wrote = wrote or any(os.access(place, os.W_OK) for place in places)
    limits = [resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE,
              resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE]
    import ctypes
    libc = ctypes.CDLL(None)
    held = (ctypes.c_uint32 * 6)()
    libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held)
    return {
        "no network": not reached,
        "contained processes": os.getppid() == 0 and os.getpid() == 1,
        "hidden files": not read and not os.path.exists("/etc/passwd"),
        "unwritable files": not wrote,
        "limits": all(resource.getrlimit(each)[1] != resource.RLIM_INFINITY for each in limits),
        "closed environment": secret not in str(os.environ),
        "no privileges": not any(held) and os.geteuid() != 0 and libc.prctl(39, 0, 0, 0, 0) == 1,
        "filtered system calls": libc.prctl(21, 0, 0, 0, 0) == 2,
    }
"""


PROBE_LIMITS = SandboxLimits(time_s=10)


class Runs(Protocol):
    async def run(
        self, code: str, *, function: str | None, arguments: Any, limits: SandboxLimits
    ) -> SandboxRun: ...


@dataclass(frozen=True, slots=True)
class Protections:
    """Which of ESSENTIAL and FURTHER hold, by name."""

    holding: dict[str, bool] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The essential ones that do not hold."""
        return [name for name in ESSENTIAL if not self.holding.get(name)]

    def __str__(self) -> str:
        names = [*ESSENTIAL, *FURTHER]
        held = [name for name in names if self.holding.get(name)]
        gone = [name for name in names if not self.holding.get(name)]
        return f"{', '.join(held) or 'none'}" + (f"; missing: {', '.join(gone)}" if gone else "")


async def probed(sandbox: Runs) -> Protections:
    """What a run of `sandbox` could not do, though it tried."""
    with _bait() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        arguments = [listening.getsockname()[1], folder, os.getpid(), folder]
        run = await sandbox.run(PROBE, function="probe", arguments=arguments, limits=PROBE_LIMITS)
    found = run.value if isinstance(run.value, dict) else {}
    return Protections({name: bool(found.get(name)) for name in (*ESSENTIAL, *FURTHER)})


@contextmanager
def _bait() -> Iterator[str]:
    """A folder that every user of this machine may write to, with a file that all may read."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        secret = Path(folder, "secret")
        secret.write_text("anybody may read this")
        secret.chmod(0o644)
        yield folder
