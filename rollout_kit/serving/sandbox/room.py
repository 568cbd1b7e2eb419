"""Isolate a process: namespaces, and a root directory with only an interpreter. Standard library
only.

The zygote enters the room once. Each run, a fork of it, adds its own process namespace, System V
IPC and `/tmp`. Root needs no user namespace, because each run drops root; for other users it makes
the other namespaces possible. These are the system calls of bubblewrap, made here so that a run
costs only a fork.
"""

import fcntl
import os
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress

from . import kernel

NOBODY = 65534

USER_ID, NUM_USER_IDS = 60_000, 5_000
"""Range of user ids for runs started by root: one id per room, so that the limit on processes
counts the runs of one room only."""

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
"""Libraries that the interpreter's extension modules load."""

DEVICES = ("null", "urandom", "random")
"""Without `zero`, a shared mapping of which allocates memory that no limit counts."""

OLD = "/.old"

PIPES_BYTES = 8 << 20
"""What all pipes of a run together may hold before new ones get two pages each."""

PIPE_BYTES = 1 << 20
"""The largest pipe that a user without privileges may have, by default."""

MAX_PIPES = 128
"""More are not reserved, where a machine permits a user much more than Linux's default of 64 MB."""


def enter() -> int | None:
    """Create new namespaces for the next fork of this process. Return the user id for runs, or None
    if the user namespace has only one."""
    flags = kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWPID
    if os.geteuid() == 0 and has_user_ids():
        try:
            kernel.unshare(flags)
            return USER_ID + os.getpid() % NUM_USER_IDS
        except PermissionError:  # in a restricted container: use a user namespace as nobody
            drop_root(NOBODY)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else root still owns /proc/self/uid_map
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(flags | kernel.NEWUSER)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"1000 {user} 1")
    write("/proc/self/gid_map", f"1000 {group} 1")
    return None


def has_user_ids() -> bool:
    """Whether this user namespace contains all ids used here."""
    with open("/proc/self/uid_map") as file:
        ranges = [list(map(int, line.split())) for line in file]
    return any(first == 0 and number > NOBODY for first, _, number in ranges)


def reserve_pipes(user: int) -> list[int]:
    """Leave PIPES_BYTES of what Linux permits the pipes of `user`: the rest is taken by empty
    pipes, which cost nothing. They are the returned descriptors, to be kept open. Needs root."""
    with open("/proc/sys/fs/pipe-user-pages-soft") as file:
        most = int(file.read()) * resource.getpagesize()
    kept: list[int] = []
    os.setresuid(user, 0, 0)  # a pipe counts for the real user
    try:
        while (len(kept) + 1) * PIPE_BYTES <= most - PIPES_BYTES and len(kept) < MAX_PIPES:
            end, other = os.pipe2(os.O_CLOEXEC)
            os.close(other)
            kept.append(end)
            with suppress(OSError):
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    finally:
        os.setresuid(0, 0, 0)
    return kept


def drop_root(user: int) -> None:
    """Change to `user` permanently, which drops all capabilities."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def build_root(folders: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Change to a read-only root with only `folders`, `packages` and the files of the interpreter.
    Return the new paths from which they can be imported."""
    if sys.base_prefix.startswith("/tmp/"):
        raise OSError(f"the interpreter is in {sys.base_prefix}, which each run's own /tmp hides")
    interpreter = os.path.realpath(sys.base_prefix)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    os.mkdir(f"/tmp{OLD}")
    kernel.call("pivot_root", b"/tmp", f"/tmp{OLD}".encode())
    os.chdir("/")
    for path in LIBRARIES:
        _mount_path(path)
    if not _is_mounted(sys.base_prefix):
        os.makedirs(sys.base_prefix, exist_ok=True)
        _bind(interpreter, sys.base_prefix)
    if not os.path.exists(os.__file__):
        raise OSError(f"the interpreter in {sys.base_prefix} cannot be read by another user")
    places = []
    for number, folder in enumerate(folders):
        places.append(f"/folders/{number}")
        os.makedirs(places[-1])
        _bind(folder, places[-1])
    os.makedirs("/packages")
    for package in packages:
        place = f"/packages/{os.path.basename(package)}"
        if os.path.isdir(OLD + package):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
        _bind(package, place)
    places.append("/packages")
    os.mkdir("/dev")
    for name in DEVICES:
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o644))
        # else a run could set the device's time of change, which all later ones would see
        kernel.bind_read_only(f"{OLD}/dev/{name}", f"/dev/{name}", is_device=True)
    os.makedirs("/tmp")
    os.symlink("/tmp", "/dev/shm")
    os.symlink("/tmp/.stdin", "/dev/stdin")
    kernel.call("umount2", OLD.encode(), kernel.MNT_DETACH)
    os.rmdir(OLD)
    flags = kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", "/", "tmpfs", flags, "mode=755,size=1m")
    return places


def _mount_path(path: str) -> None:
    """Mount `path` and its link targets at the same place in the new root, if it exists."""
    before = f"{OLD}{path}"
    if not os.path.lexists(before) or _is_mounted(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(before):
        target = os.readlink(before)
        os.symlink(target, path)
        _mount_path(os.path.normpath(os.path.join(os.path.dirname(path), target)))
    elif os.path.isdir(before):
        os.makedirs(path, exist_ok=True)
        _bind(path, path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        _bind(path, path)


def _bind(source: str, target: str) -> None:
    try:
        kernel.bind_read_only(f"{OLD}{source}", target)
    except OSError as error:
        raise OSError(f"cannot mount {source}: {error}") from None


def _is_mounted(path: str) -> bool:
    while path != "/":
        if os.path.ismount(path) or os.path.islink(path):
            return True
        path = os.path.dirname(path)
    return False


def mount_own_tmp(files_mb: int) -> None:
    """Give this run its own mounts, IPC, and an empty `/tmp`, which is its working folder."""
    kernel.unshare(kernel.NEWNS | kernel.NEWIPC)
    options = f"mode=1777,size={files_mb}m,nr_inodes=4096"
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    os.chdir("/tmp")


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
