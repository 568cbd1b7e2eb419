"""Linux system calls for isolation, through libc. Standard library only."""

import ctypes
import os

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


def bind_read_only(source: str, target: str, *, is_device: bool = False) -> None:
    """Mount `source`, a folder, a file or a device, read-only at `target`. What is written to a
    device is taken all the same."""
    mount(source, target, flags=MS_BIND | MS_REC)
    wanted = MS_RDONLY | MS_NOSUID | (0 if is_device else MS_NODEV)
    attributes = (ctypes.c_uint64 * 4)(wanted, 0, 0, 0)
    path, size = target.encode(), ctypes.sizeof(attributes)
    if libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, attributes, size) == 0:
        return
    kept = os.statvfs(target).f_flag & 0x40F  # a user namespace must keep the outer flags
    mount("", target, flags=MS_BIND | MS_REMOUNT | wanted | kept)


def forbid_capabilities() -> None:
    """Forbid gaining capabilities by executing a file; needs CAP_SETPCAP."""
    for number in range(NUM_CAPABILITIES):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # unknown numbers give EINVAL
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


def drop_capabilities() -> None:
    """Drop all capabilities, and gain no privileges by executing a file."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
    prctl(PR_SET_NO_NEW_PRIVS, 1)
