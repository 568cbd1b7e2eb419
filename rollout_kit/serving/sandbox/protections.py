"""Find out which protections of the sandbox work on this machine.

A run in the sandbox attempts everything that is forbidden and reports what succeeded, because
settings do not reveal it reliably.
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
    "no network": "a run reaches no address, not even this machine",
    "contained processes": "a run sees and signals only its own processes, and they end with it",
    "hidden files": "a run reads the interpreter and nothing else",
    "unwritable files": "a run writes only to its own empty folder",
    "limits": "CPU, memory, file size, processes, open files",
}
"""Protections that are required unless the sandbox is `unsafe` → effect."""

FURTHER = {
    "closed environment": "a run sees no environment variable of this process",
    "no privileges": "a run has no capabilities and cannot gain any",
    "filtered system calls": "rarely used system calls are refused",
}

PROBE = """
import os, resource, socket

def tried(act):
    try:
        act()
    except (OSError, ValueError):
        return False
    return True

def is_contained():
    if os.getppid() == 0:
        return os.getpid() == 1
    # a child of a container's first process, which ends all others after the run
    return os.getppid() == 1 and not tried(lambda: os.kill(1, 0))

def probe(port, folder, process, secret, outside):
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
        "contained processes": is_contained(),
        "hidden files": not read and not os.path.exists(outside),
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
    """Which of ESSENTIAL and FURTHER work."""

    holding: dict[str, bool] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Essential protections that do not work."""
        return [name for name in ESSENTIAL if not self.holding.get(name)]

    def __str__(self) -> str:
        names = [*ESSENTIAL, *FURTHER]
        held = [name for name in names if self.holding.get(name)]
        gone = [name for name in names if not self.holding.get(name)]
        return f"{', '.join(held) or 'none'}" + (f"; missing: {', '.join(gone)}" if gone else "")


async def probe_protections(sandbox: Runs) -> Protections:
    """Return the protections that a test run of `sandbox` could not break."""
    with _bait() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        arguments = [listening.getsockname()[1], folder, os.getpid(), folder, __file__]
        run = await sandbox.run(PROBE, function="probe", arguments=arguments, limits=PROBE_LIMITS)
    found = run.value if isinstance(run.value, dict) else {}
    return Protections({name: bool(found.get(name)) for name in (*ESSENTIAL, *FURTHER)})


@contextmanager
def _bait() -> Iterator[str]:
    """A folder that every user may write to, with a file that every user may read."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        secret = Path(folder, "secret")
        secret.write_text("every user may read this")
        secret.chmod(0o644)
        yield folder
