"""Linux system calls for isolation, through libc. Standard library only."""

import ctypes
import os
from collections.abc import Collection

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
"""Namespaces: mounts, host name, System V IPC, users, processes, network."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
MS_PRIVATE, MNT_DETACH = 1 << 18, 2

OPEN_TREE, MOVE_MOUNT, AT_EMPTY_PATH = 428, 429, 0x1000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, 1 << 19
MOVE_MOUNT_F_EMPTY_PATH, MOUNT_ATTR_IDMAP = 4, 1 << 20

MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
"""The system call has one number on every architecture; Linux 5.12 and newer."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 47, 4

CAPABILITY_VERSION, NUM_CAPABILITIES = 0x20080522, 64

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """Call a function of libc; raise OSError with its name if it fails."""
    result = getattr(libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    call("unshare", flags)


def prctl(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return call("prctl", option, *(ctypes.c_ulong(each) for each in padded))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    try:
        call("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def bind_read_only(
    source: str, target: str, *, is_device: bool = False, is_alone: bool = False
) -> None:
    """Mount `source`, a folder, a file or a device, read-only at `target`. What is written to a
    device is taken all the same. `is_alone`: without what is mounted below it."""
    mount(source, target, flags=MS_BIND | (0 if is_alone else MS_REC))
    wanted = MS_RDONLY | MS_NOSUID | (0 if is_device else MS_NODEV)
    attributes = (ctypes.c_uint64 * 4)(wanted, 0, 0, 0)
    path, size = target.encode(), ctypes.sizeof(attributes)
    if libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, attributes, size) == 0:
        return
    kept = os.statvfs(target).f_flag & 0x40F  # a user namespace must keep the outer flags
    mount("", target, flags=MS_BIND | MS_REMOUNT | wanted | kept)


def map_tree(source: str, users: int) -> int:
    """A descriptor of the mount of `source`, read-only, with owners as the user namespace of the
    descriptor `users` maps them. Linux 5.12 and newer, and not every file system."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
    tree = libc.syscall(OPEN_TREE, AT_FDCWD, source.encode(), flags)
    if tree == -1:
        raise OSError(ctypes.get_errno(), f"open_tree {source}")
    wanted = MOUNT_ATTR_IDMAP | MS_RDONLY | MS_NOSUID | MS_NODEV
    attributes = (ctypes.c_uint64 * 4)(wanted, 0, 0, users)
    size = ctypes.sizeof(attributes)
    if libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, size) == -1:
        number = ctypes.get_errno()
        os.close(tree)
        raise OSError(number, f"{source} cannot be mapped")
    return tree


def bind_mapped(source: str, target: str, users: int) -> None:
    """Mount `source` at `target`, as `map_tree` has it."""
    tree = map_tree(source, users)
    try:
        place = target.encode()
        if libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, place, MOVE_MOUNT_F_EMPTY_PATH) == -1:
            raise OSError(ctypes.get_errno(), f"move_mount {target}")
    finally:
        os.close(tree)


def forbid_capabilities(kept: Collection[int] = ()) -> None:
    """Forbid gaining capabilities but `kept` by executing a file; needs CAP_SETPCAP."""
    for number in range(NUM_CAPABILITIES):
        if number not in kept:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # unknown numbers give EINVAL
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


def drop_capabilities(kept: Collection[int] = ()) -> None:
    """Drop all capabilities but `kept`, and gain no privileges by executing a file."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    mask = sum(1 << number for number in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    call("capset", header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
