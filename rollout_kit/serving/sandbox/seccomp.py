"""A seccomp filter that refuses system calls which no run needs. Standard library only.

The namespaces isolate without it. The filter reduces the reachable kernel code, and blocks calls
that allocate memory outside every limit. The filter of a session permits a few more, without which
Git, Node and test runners do not work.
"""

import ctypes
import errno
import os
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from . import kernel

PR_SET_SECCOMP, MODE_FILTER, INSTRUCTION_SIZE = 22, 2, 8
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, FIRST, SECOND, THIRD, FOURTH = 0, 4, 16, 24, 32, 40
"""Offsets in the filter's input: number of the call, architecture, arguments."""

X32 = 0x40000000
"""Bit that marks the x32 numbers of the same calls on x86."""

NEWER = 470
"""The first number of calls that this list does not know; numbers are the same everywhere."""

Instruction = tuple[int, int, int, int]
"""Operation, number to skip if true, number to skip if false, value."""

UNIX, INET, INET6 = 1, 2, 10
"""Families of sockets, confined by the network namespace, unlike others such as vsock."""

STREAM, KIND = 1, 0xF
"""Datagrams of many senders may wait in one Unix socket, so that its size is no bound."""

NEW_NAMESPACES = 0x7E020000
"""Flags that `clone` must not have."""

SHARED_ANONYMOUS = 0x21
"""Flags that `mmap` must not have together. Pages of such a mapping stay allocated after `munmap`
of all but one of them, and then no measurement of a process shows them."""

COMMANDS = (6, 7, 37, 38, 1024, 1026)
"""Commands that `fcntl` must not have: locks on parts of a file, leases and notifications, for
each of which the kernel keeps memory. `flock` is permitted: it is one lock for each file."""

SESSION_COMMANDS = (1024, 1026)
"""Those that a session must not have: Git, SQLite and package managers lock parts of files."""

TYPES_FOR_ANOTHER = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put text into a terminal as if it had been typed."""

SET_SECCOMP = 22
"""Option of `prctl`: filters add up."""

OPTIONS = {
    1: (2, 6, 9, 10, 13, 15, 16, 18, 20, 21, 66, 67),
    6: (1, 4, 5, 6),
    41: (26,),
}
"""Level → options of sockets that may be set. Not among them: those that let more wait in a socket,
or that leave a filter in the kernel."""

FILTERS = (26, 27, 50, 51, 52)
"""Options of sockets with which a filter is attached, locked or read."""


class Machine(NamedTuple):
    """Numbers of system calls on a processor."""

    architecture: int
    socket: int
    socketpair: int
    setsockopt: int
    clone: int
    mmap: int
    fcntl: int
    prctl: int
    ioctl: int
    refused: tuple[int, ...]
    """In the order of REFUSED; the same on all processors from 424 on."""
    session: tuple[int, ...]
    """Of `refused`: what a session may call."""


REFUSED = """
ptrace, process_vm_readv, process_vm_writev, kcmp; shm*, sem*, msg*, mq_open; memfd_create;
unshare, setns, mount, umount2, pivot_root, chroot; bpf; add_key, request_key, keyctl;
perf_event_open, userfaultfd; name_to_handle_at, open_by_handle_at; init_module, finit_module,
delete_module; kexec_load, kexec_file_load, swapon, swapoff, reboot, quotactl, acct, personality;
vmsplice, tee, splice, sendfile; inotify_init, inotify_init1, fanotify_init; io_setup; seccomp
"""

EVERYWHERE = (
    *(425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 443, 444, 445, 446, 447),
    *(457, 458, 463, 464, 465, 466, 467),
)
"""io_uring_*; open_tree, move_mount, fs*; pidfd_getfd; mount_setattr,
quotactl_fd, landlock_*, memfd_secret; statmount, listmount; *xattrat, open_tree_attr."""

MACHINES = {
    "x86_64": Machine(
        architecture=0xC000003E,
        socket=41,
        socketpair=53,
        setsockopt=54,
        clone=56,
        mmap=9,
        fcntl=72,
        prctl=157,
        ioctl=16,
        refused=(
            *(101, 310, 311, 312, 29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 240, 319),
            *(272, 308, 165, 166, 155, 161, 321, 248, 249, 250),
            *(298, 323, 303, 304, 175, 313, 176, 246, 320, 167, 168, 169, 179, 163, 135),
            *(278, 276, 275, 40, 253, 294, 300, 206, 317, 154),  # the last is modify_ldt
        ),
        session=(276, 275, 40, 253, 294),
    ),
    "aarch64": Machine(
        architecture=0xC00000B7,
        socket=198,
        socketpair=199,
        setsockopt=208,
        clone=220,
        mmap=222,
        fcntl=25,
        prctl=167,
        ioctl=29,
        refused=(
            *(117, 270, 271, 272, 194, 195, 196, 197, 190, 191, 192, 193, 186, 187, 188, 189),
            *(180, 279, 97, 268, 40, 39, 41, 51, 280, 217, 218, 219),
            *(241, 282, 264, 265, 105, 273, 106, 104, 294, 224, 225, 142, 60, 89, 92),
            *(75, 77, 76, 71, 26, 262, 0, 277),
        ),
        session=(77, 76, 71, 26),
    ),
}

CLONE3 = 435
"""A filter cannot read its flags, which are behind a pointer; libc falls back to `clone`."""

PERMIT: Instruction = (RETURN, 0, 0, ALLOW)
FORBID: Instruction = (RETURN, 0, 0, REFUSE | errno.EPERM)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def install(*, in_session: bool = False) -> bool:
    """Refuse the calls for this process and its children; False for an unknown architecture."""
    raw = compile_filter(in_session)
    if raw is None:
        return False
    memory = ctypes.create_string_buffer(raw, len(raw))
    program = _Program(len(raw) // INSTRUCTION_SIZE, ctypes.addressof(memory))
    kernel.call(
        "prctl",
        PR_SET_SECCOMP,
        ctypes.c_ulong(MODE_FILTER),
        ctypes.byref(program),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    return True


@cache
def compile_filter(in_session: bool = False) -> bytes | None:
    """The filter for this processor, None if it is unknown; a zygote calls it before it forks."""
    if (machine := MACHINES.get(os.uname().machine)) is None:
        return None
    return b"".join(
        op.to_bytes(2, "little") + bytes((yes, no)) + value.to_bytes(4, "little")
        for op, yes, no, value in _program(machine, in_session)
    )


def _program(machine: Machine, in_session: bool) -> list[Instruction]:
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, machine.architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        FORBID,
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
        (AT_LEAST, 0, 1, NEWER),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
    ]
    permitted = machine.session if in_session else ()
    for number in (*machine.refused, *EVERYWHERE):
        program += [] if number in permitted else [(EQUAL, 0, 1, number), FORBID]
    for number, checks in (
        (machine.clone, [(LOAD, 0, 0, FIRST), (ANY_BIT, 0, 1, NEW_NAMESPACES), FORBID]),
        (machine.mmap, _refuse_shared()),
        (machine.fcntl, _refuse_values(SECOND, SESSION_COMMANDS if in_session else COMMANDS)),
        (machine.ioctl, _refuse_values(SECOND, TYPES_FOR_ANOTHER)),
        (machine.prctl, _refuse_values(FIRST, (SET_SECCOMP,))),
        (machine.socket, _permit_sockets()),
        (machine.socketpair, _permit_sockets()),
        (machine.setsockopt, _refuse_filters() if in_session else _permit_options()),
    ):
        program += [(EQUAL, 0, len(checks) + 1, number), *checks, PERMIT]
    return [*program, PERMIT]


def _refuse_values(argument: int, values: Iterable[int]) -> list[Instruction]:
    found: list[Instruction] = [(LOAD, 0, 0, argument)]
    for value in values:
        found += [(EQUAL, 0, 1, value), FORBID]
    return found


def _refuse_shared() -> list[Instruction]:
    mask = SHARED_ANONYMOUS
    return [(LOAD, 0, 0, FOURTH), (AND, 0, 0, mask), (EQUAL, 0, 1, mask), FORBID]


def _permit_sockets() -> list[Instruction]:
    """Streams of Unix sockets, and all kinds of the other families."""
    unknown = (RETURN, 0, 0, REFUSE | errno.EAFNOSUPPORT)
    return [
        (LOAD, 0, 0, FIRST),
        (EQUAL, 7, 0, INET),
        (EQUAL, 6, 0, INET6),
        (EQUAL, 1, 0, UNIX),
        unknown,
        (LOAD, 0, 0, SECOND),
        *[(AND, 0, 0, KIND), (EQUAL, 1, 0, STREAM), unknown],
    ]


def _permit_options() -> list[Instruction]:
    found: list[Instruction] = [(LOAD, 0, 0, SECOND)]
    for level, options in OPTIONS.items():
        checks: list[Instruction] = [(LOAD, 0, 0, THIRD)]
        for option in options:
            checks += [(EQUAL, 0, 1, option), PERMIT]
        found += [(EQUAL, 0, len(checks) + 1, level), *checks, FORBID]
    return [*found, FORBID]


def _refuse_filters() -> list[Instruction]:
    """A session sets all options of sockets but those that leave a filter in the kernel."""
    checks = [each for option in FILTERS for each in ((EQUAL, 0, 1, option), FORBID)]
    begin: list[Instruction] = [(LOAD, 0, 0, SECOND), (EQUAL, 0, len(checks) + 1, 1)]
    return [*begin, (LOAD, 0, 0, THIRD), *checks]
