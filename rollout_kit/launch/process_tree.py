"""A process and everything that it started, by the kernel's own books. Standard library only.

Whoever moved to a process group of its own is found through its parent, whoever lost its parent
through its session, and whoever left all three behind through the mark that it inherited.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")

MARK = "ROLLOUT_KIT_PROCESS"
"""The environment variable that a server process and all its descendants carry; its value is the
process's own."""

ROUNDS = 20
"""Looks for survivors before giving up: who forks while being killed is met again in the next."""

ROUND_S = 0.01


def family(root: int, mark: str = "") -> dict[int, str]:
    """Live members by pid, each with its start time, which tells it from a later owner of the pid.

    `mark` finds those that only their environment gives away. Empty where there is no /proc.
    """
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    members: set[int] = set()
    for pid, fields in _processes():
        state, parent, group, session = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
        if state in "ZX":
            continue
        parents[pid], started[pid] = parent, fields[19]
        if root in (pid, group, session) or (mark and _is_marked(pid, mark)):
            members.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    return {pid: started[pid] for pid in members}


def find_marked(variable: str, value: str) -> dict[int, str]:
    """Live processes with `variable=value` in their environment, each with its start time."""
    return {
        pid: fields[19]
        for pid, fields in _processes()
        if fields[0] not in "ZX" and _is_marked(pid, value, variable)
    }


def kill(members: dict[int, str]) -> None:
    """Kill those that still are who they were."""
    for pid, start in members.items():
        if _start_time(pid) == start:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def kill_family(root: int, mark: str = "", *, spare: int | None = None) -> None:
    """Kill the members, and again until none is left; `spare` lives on."""
    if not PROC.joinpath("self/stat").exists():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        return
    for _ in range(ROUNDS):
        members = family(root, mark)
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


def _is_marked(pid: int, mark: str, variable: str = MARK) -> bool:
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
        return f"{variable}={mark}".encode() in environment.split(b"\0")
    except OSError:
        return False  # another user's, or gone


def _start_time(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[19] if fields else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the name, which may hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
