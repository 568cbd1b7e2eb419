"""A seccomp filter that refuses system calls which no run needs. Standard library only.

The namespaces isolate without it. The filter reduces the reachable kernel code, and blocks calls
that allocate memory outside every limit.
"""

import ctypes
import errno
import platform

from . import kernel

PR_SET_SECCOMP, MODE_FILTER = 22, 2
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENT, FOURTH_ARGUMENT = 0, 4, 16, 40
"""Offsets in the filter's input: number of the call, architecture, first and fourth argument."""

X32 = 0x40000000
"""Bit that marks the x32 numbers of the same calls on x86."""

FAMILIES = (1, 2, 10)
"""Unix, IPv4 and IPv6: confined by the network namespace, unlike others such as vsock."""

NEW_NAMESPACES = 0x7E020000
"""Flags that `clone` must not have."""

SHARED_ANONYMOUS = 0x21
"""Flags that `mmap` must not have together. Pages of such a mapping stay allocated after `munmap`
of all but one of them, and then no measurement of a process shows them."""

ARCHITECTURES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {"socket": 41, "clone": 56, "mmap": 9},
    ),
    "aarch64": (0xC00000B7, {"socket": 198, "clone": 220, "mmap": 222}),
}

REFUSED: dict[str, tuple[int, ...]] = {
    # ptrace, process_vm_*, kcmp · shm*, sem*, msg*, mq_open · memfd_create, memfd_secret
    # unshare, setns, mount, umount2, pivot_root, chroot, and the newer mount calls · bpf · keyctl
    # and its kin · perf_event_open · userfaultfd · io_uring_* · open_by_handle_at and its kin
    # modules, kexec, swap, reboot, quota, acct · personality
    "x86_64": (
        *(101, 310, 311, 312, 29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240, 319, 447),
        *(272, 308, 165, 166, 155, 161, 428, 429, 430, 431, 432, 433, 442, 321, 248, 249, 250),
        *(298, 323, 425, 426, 427, 303, 304, 175, 176, 313, 246, 320, 167, 168, 169, 179, 163),
        *(135,),
    ),
    "aarch64": (
        *(117, 270, 271, 272, 194, 195, 196, 190, 191, 192, 193, 186, 187, 188, 189, 180, 279),
        *(447, 97, 268, 40, 39, 41, 51, 428, 429, 430, 431, 432, 433, 442, 280, 217, 218, 219),
        *(241, 282, 425, 426, 427, 264, 265, 105, 106, 273, 104, 294, 224, 225, 142, 60, 89, 92),
    ),
}

CLONE3 = 435
"""A filter cannot read its flags, which are behind a pointer; libc falls back to `clone`."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def install() -> bool:
    """Refuse the calls for this process and its children; False for an unknown architecture."""
    known = ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    code = _program(*known, REFUSED[platform.machine()])
    raw = b"".join(
        op.to_bytes(2, "little") + bytes((yes, no)) + value.to_bytes(4, "little")
        for op, yes, no, value in code
    )
    memory = ctypes.create_string_buffer(raw, len(raw))
    program = _Program(len(code), ctypes.addressof(memory))
    kernel.call(
        "prctl",
        PR_SET_SECCOMP,
        ctypes.c_ulong(MODE_FILTER),
        ctypes.byref(program),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    return True


def _program(
    architecture: int, numbers: dict[str, int], refused: tuple[int, ...]
) -> list[tuple[int, int, int, int]]:
    """Instructions: operation, number to skip if true, number to skip if false, value."""
    no = (RETURN, 0, 0, REFUSE | errno.EPERM)
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        no,
    ]
    for number in refused:
        program += [(EQUAL, 0, 1, number), no]
    program += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    program += [(EQUAL, 0, 4, numbers["clone"]), (LOAD, 0, 0, ARGUMENT)]
    program += [(ANY_BIT, 0, 1, NEW_NAMESPACES), no, (RETURN, 0, 0, ALLOW)]
    program += [(EQUAL, 0, 5, numbers["mmap"]), (LOAD, 0, 0, FOURTH_ARGUMENT)]
    program += [(AND, 0, 0, SHARED_ANONYMOUS), (EQUAL, 0, 1, SHARED_ANONYMOUS), no]
    program += [(RETURN, 0, 0, ALLOW)]
    program += [(EQUAL, 0, 1 + len(FAMILIES) + 1, numbers["socket"]), (LOAD, 0, 0, ARGUMENT)]
    for place, family in enumerate(FAMILIES):
        program += [(EQUAL, len(FAMILIES) - place, 0, family)]
    program += [(RETURN, 0, 0, REFUSE | errno.EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]
    return program
