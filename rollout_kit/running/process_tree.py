"""A process and everything that it started, by the kernel's own books. Standard library only.

Whoever moved to a process group of its own is found through its parent, and whoever lost its parent
through its session. A process that left all three behind wanted to stay.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")

ROUNDS = 20
"""Looks for survivors before giving up: who forks while being killed is met again in the next."""

ROUND_S = 0.01


def family(root: int) -> dict[int, str]:
    """Live members by pid, each with its start time, which tells it from a later owner of the pid.

    Empty where there is no /proc.
    """
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    members: set[int] = set()
    for pid, fields in _processes():
        state, parent, group, session = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
        if state in "ZX":
            continue
        parents[pid], started[pid] = parent, fields[19]
        if root in (pid, group, session):
            members.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    return {pid: started[pid] for pid in members}


def kill(members: dict[int, str]) -> None:
    """Kill those that still are who they were."""
    for pid, start in members.items():
        if _start_time(pid) == start:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def kill_family(root: int, *, spare: int | None = None) -> None:
    """Kill the members, and again until none is left; `spare` lives on."""
    if not PROC.joinpath("self/stat").exists():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        return
    for _ in range(ROUNDS):
        members = family(root)
        members.pop(spare or 0, None)
        if not members:
            return
        kill(members)
        time.sleep(ROUND_S)


def _processes() -> list[tuple[int, list[str]]]:
    return [
        (int(entry.name), fields)
        for entry in (PROC.iterdir() if PROC.is_dir() else ())
        if entry.name.isdigit() and (fields := _stat(int(entry.name)))
    ]


def _start_time(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[19] if fields else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the name, which may hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
