"""A process and everything that it started, found in /proc. Standard library only.

Descendants are found by parent, process group and session, and by the mark that they inherit in
their environment. Nothing else finds daemons, and a sub-reaper would have to reap processes that
are not ours. `python -m rollout_kit.serving.process_tree` is the reaper: it kills the children
of a parent that was killed. Lines on its standard input name them: `+pid mark` when one starts,
`-pid` when it is gone. At the end of the input the parent is dead; the children have GRACE_S to end
by themselves, then they and their descendants are killed.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

PROC = "/proc"

MARK = "ROLLOUT_KIT_PROCESS"
"""Environment variable of a server process and its descendants; each process has its own value."""

ROUNDS = 200
"""Most searches for survivors: a process may fork while it is being killed, and on a busy machine a
killed one takes a moment to end."""

ROUND_S = 0.01

GRACE_S = 1.5


def family(root: int, mark: str = "") -> dict[int, str]:
    """Live members by pid, each with its start time, which distinguishes it from a later process
    with the same pid. Empty if there is no /proc."""
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
    """Kill the members whose pid still belongs to the same process."""
    for pid, start in members.items():
        if _is_live(pid, start):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def kill_family(root: int, mark: str = "", *, spare: int | None = None) -> None:
    """Kill the members until none is left, except the process `spare`.

    A member leaves the family when its parent ends first, and a killed process may live on for a
    moment: each that was found is watched until it has ended.
    """
    if not os.path.exists(f"{PROC}/self/stat"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        return
    found: dict[int, str] = {}
    for _ in range(ROUNDS):
        found |= family(root, mark)
        found.pop(spare or 0, None)
        found = {pid: start for pid, start in found.items() if _is_live(pid, start)}
        if not found:
            return
        kill(found)
        time.sleep(ROUND_S)


def _processes() -> list[tuple[int, list[str]]]:
    return [
        (int(name), fields)
        for name in (os.listdir(PROC) if os.path.isdir(PROC) else ())
        if name.isdigit() and (fields := _stat(int(name)))
    ]


def _is_marked(pid: int, mark: str, variable: str = MARK) -> bool:
    try:
        environment = _read(pid, "environ")
    except OSError:
        return False  # another user's process, or one that has ended
    return f"{variable}={mark}".encode() in environment.split(b"\0")


def _is_live(pid: int, start: str) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] not in "ZX" and fields[19] == start


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the name, which may hold anything."""
    try:
        return _read(pid, "stat").rpartition(b")")[2].decode().split()
    except OSError:
        return None


def _read(pid: int, name: str) -> bytes:
    with open(f"{PROC}/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()


def reap() -> None:
    """Run as the reaper."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of the input counts
    marks: dict[int, str] = {}
    for line in sys.stdin:
        pid, _, mark = line[1:].strip().partition(" ")
        if line[0] == "+":
            marks[int(pid)] = mark
        else:
            marks.pop(int(pid), None)
    if not marks:
        return
    left = {pid: start for root, mark in marks.items() for pid, start in family(root, mark).items()}
    time.sleep(GRACE_S)
    kill(left)
    for root, mark in marks.items():
        kill_family(root, mark)


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
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else fields[19]


def may_run(pid: int, start: str | None) -> bool:
    """Whether the process of this machine that had this id and start may still run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return read_start(pid) == start


if __name__ == "__main__":
    reap()
