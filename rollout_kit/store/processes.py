"""Whether a process still runs, though its id may belong to a later one by now."""

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def name_machine() -> str:
    """The host name, and what tells it from another machine, another boot and another container."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append("".join(filter(str.isdecimal, os.readlink("/proc/self/ns/pid"))))
    return "/".join(parts)


def read_start(pid: int) -> str | None:
    """When a process began, in ticks; None where that cannot be read, and for one that has ended
    but is still listed."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def may_run(pid: int, start: str | None) -> bool:
    """Whether the process of this machine that had this id and start may still run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return read_start(pid) == start
