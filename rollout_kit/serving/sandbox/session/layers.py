"""The mounts of a session: its own files over those that it started from. Standard library only.

Each place where a session may write is an overlay: below lies what it started from, above a folder
of the session's own file system, which is in memory, has a size, and ends with the session. A
reset is a new upper folder.
"""

import os
import shutil
from collections.abc import Sequence

from .. import kernel
from . import ground

ROOT, START, LAYERS, LOWER, DEVICES = "/root", "/start", "/layers", "/lower", "/devices"
"""In the room of a session's first process. Its other processes see only ROOT, as `/`."""

NODES = ("null", "zero", "full", "random", "urandom", "tty")

READ_ONLY = ("sys", "bus", "fs", "irq")

HIDDEN = [
    "acpi",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "sysrq-trigger",
    "timer_list",
]
"""Of `/proc`."""

UNSAFE = kernel.MS_NOSUID | kernel.MS_NODEV

MAX_SNAPSHOTS = 16

OLD = "/.old"


class Layers:
    """The overlays; `generation` is the number of the upper folders that are in use."""

    def __init__(
        self, disk_mb: int, overlays: Sequence[tuple[str, list[int]]], binds: Sequence[str]
    ) -> None:
        self._overlays, self._binds = [place for place, _ in overlays], binds
        self.generation = 0
        self._num_below = sum(len(numbers) for _, numbers in overlays)
        _enter(disk_mb, self._num_below + len(binds))
        self._lower = [[f"{LOWER}/{number}" for number in numbers] for _, numbers in overlays]
        self.start = self._made_from = self._lower
        self._snapshots: dict[str, list[list[str]]] = {}
        self._mount()

    def upper(self, number: int) -> str:
        return f"{LAYERS}/{self.generation}/{number}/upper"

    def list_changes(self, *, whole: bool = False) -> list[tuple[str, list[str]]]:
        """Each place with the folders that lie above its start, the newest first. `whole`: above
        what the session was made from, with the start that was sealed."""
        found, below = [], self._made_from if whole else self.start
        for number, place in enumerate(self._overlays):
            above = [each for each in self._lower[number] if each not in below[number]]
            found.append((place, [self.upper(number), *above]))
        return found

    def seal(self) -> None:
        """Take the files as they are now as the start."""
        self._lower = [[self.upper(number), *lower] for number, lower in enumerate(self._lower)]
        self.start = self._lower
        for number, place in enumerate(self._overlays):
            options = f"lowerdir={':'.join(self.start[number])},userxattr"
            kernel.mount("overlay", START + place, "overlay", UNSAFE | kernel.MS_RDONLY, options)
        self._renew(keeps=True)

    def reset(self) -> None:
        self._lower = self.start
        self._renew()

    def copy_snapshot(self, name: str) -> None:
        """Copy the files; `keep_snapshot` then makes it known. In another process, because it takes
        as long as there are files."""
        for number in range(len(self._overlays)):
            copy_tree(self.upper(number), f"{LAYERS}/of-{name}/{number}")

    def keep_snapshot(self, name: str) -> None:
        self._snapshots[name] = [
            [f"{LAYERS}/of-{name}/{number}", *lower] for number, lower in enumerate(self._lower)
        ]

    def refuse_snapshot(self, name: str) -> str:
        """Why there can be no snapshot of this name."""
        if not name.isalnum() or len(name) > 40:
            return f"a snapshot's name has letters and digits, at most 40, not {name!r}"
        if os.path.exists(f"{LAYERS}/of-{name}"):
            return f"there is a snapshot '{name}' already"
        if len(self._snapshots) >= MAX_SNAPSHOTS:
            return f"a session has at most {MAX_SNAPSHOTS} snapshots"
        return ""

    def restore(self, name: str) -> str:
        """Return to a snapshot; or why it cannot be."""
        if name not in self._snapshots:
            known = ", ".join(self._snapshots) or "none"
            return f"there is no snapshot '{name}'; there are: {known}"
        self._lower = self._snapshots[name]
        self._renew()
        return ""

    def _renew(self, keeps: bool = False) -> None:
        kernel.call("umount2", ROOT.encode(), kernel.MNT_DETACH)
        old = f"{LAYERS}/{self.generation}"
        self.generation += 1
        self._mount()
        if not keeps:
            shutil.rmtree(old, ignore_errors=True)

    def _mount(self) -> None:
        for number, place in enumerate(self._overlays):
            upper = self.upper(number)
            work = f"{os.path.dirname(upper)}/work"
            os.makedirs(upper)
            os.mkdir(work)
            lower = self._lower[number]
            os.chmod(upper, os.stat(lower[0]).st_mode & 0o7777)
            options = f"lowerdir={':'.join(lower)},upperdir={upper},workdir={work},userxattr"
            kernel.mount("overlay", ROOT + place, "overlay", UNSAFE, options)
        self._mount_others()

    def _mount_others(self) -> None:
        for name, mode in (("proc", 0o555), ("dev", 0o755), ("tmp", 0o1777), ("run", 0o755)):
            if not os.path.isdir(f"{ROOT}/{name}"):
                os.mkdir(f"{ROOT}/{name}")
                os.chmod(f"{ROOT}/{name}", mode)
        recursive = kernel.MS_BIND | kernel.MS_REC
        kernel.mount("/proc", f"{ROOT}/proc", flags=recursive)
        kernel.mount(DEVICES, f"{ROOT}/dev", flags=recursive)
        shutil.rmtree("/shm", ignore_errors=True)
        os.mkdir("/shm")
        os.chmod("/shm", 0o1777)
        kernel.mount("/shm", f"{ROOT}/dev/shm", flags=kernel.MS_BIND)
        for number, place in enumerate(self._binds, self._num_below):
            os.makedirs(ROOT + place, exist_ok=True)
            kernel.mount(f"{LOWER}/{number}", ROOT + place, flags=recursive)


def _enter(disk_mb: int, num_lower: int) -> None:
    """Change to a root in memory: the only file system that the session can fill."""
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    room = ground.ROOM
    options = f"mode=755,size={disk_mb}m,nr_inodes={disk_mb * 256}"
    kernel.mount("tmpfs", room, "tmpfs", UNSAFE, options)
    for place in (ROOT, START, LAYERS, LOWER, DEVICES, "/proc", OLD):
        os.mkdir(room + place)
    kernel.mount("proc", f"{room}/proc", "proc", UNSAFE | MS_NOEXEC)
    _raise_loopback()
    _make_harmless(f"{room}/proc")
    for number in range(num_lower):
        os.mkdir(f"{room}{LOWER}/{number}")
        source = f"{ground.LOWER}/{number}"
        kernel.mount(source, f"{room}{LOWER}/{number}", flags=kernel.MS_BIND | kernel.MS_REC)
    _make_devices(room + DEVICES)
    kernel.call("pivot_root", room.encode(), f"{room}{OLD}".encode())
    os.chdir("/")
    kernel.call("umount2", OLD.encode(), kernel.MNT_DETACH)
    os.rmdir(OLD)


MS_NOEXEC = 8


def _make_harmless(proc: str) -> None:
    """Hide what acts on the whole machine, as engines of containers do. Its files belong to the
    machine's root, which a session's root is where there are no other users."""
    for name in READ_ONLY:
        if os.path.isdir(f"{proc}/{name}"):
            kernel.bind_read_only(f"{proc}/{name}", f"{proc}/{name}")
    for name in HIDDEN:
        if os.path.isdir(f"{proc}/{name}"):
            flags = kernel.MS_RDONLY | UNSAFE
            kernel.mount("tmpfs", f"{proc}/{name}", "tmpfs", flags, "mode=555,size=4k")
        elif os.path.exists(f"{proc}/{name}"):
            kernel.bind_read_only("/dev/null", f"{proc}/{name}", is_device=True)


def _make_devices(place: str) -> None:
    kernel.mount("tmpfs", place, "tmpfs", UNSAFE, "mode=755,size=64k")
    for name in filter(lambda each: os.path.exists(f"/dev/{each}"), NODES):
        os.close(os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.bind_read_only(f"/dev/{name}", f"{place}/{name}", is_device=True)
    for name in ("pts", "shm"):
        os.mkdir(f"{place}/{name}")
    options = "newinstance,ptmxmode=0666,mode=620"
    kernel.mount("devpts", f"{place}/pts", "devpts", kernel.MS_NOSUID | MS_NOEXEC, options)
    for name, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(target, f"{place}/{name}")
    flags = kernel.MS_REMOUNT | kernel.MS_RDONLY | UNSAFE
    kernel.mount("tmpfs", place, "tmpfs", flags, "mode=755,size=64k")


def _raise_loopback() -> None:
    """Let processes of the session reach each other, with little data waiting between them."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS: IFF_UP
    for name in ("tcp_rmem", "tcp_wmem"):
        path = f"/proc/sys/net/ipv4/{name}"
        if os.access(path, os.W_OK):
            with open(path, "w") as file:
                file.write("4096 65536 131072")


def copy_tree(source: str, target: str) -> None:
    """Copy an upper folder as it is: removed files and replaced folders are marked in it."""
    os.makedirs(target, exist_ok=True)
    _copy_marks(source, target)
    with os.scandir(source) as entries:
        for entry in entries:
            to = f"{target}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                copy_tree(entry.path, to)
                continue
            found = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), to)
            elif entry.is_file(follow_symlinks=False):
                shutil.copyfile(entry.path, to)
                _copy_marks(entry.path, to)
            else:  # a removed file is a device; others are pipes and sockets
                os.mknod(to, found.st_mode, found.st_rdev)


def _copy_marks(source: str, target: str) -> None:
    shutil.copystat(source, target, follow_symlinks=False)
    found = os.stat(source)
    os.chown(target, found.st_uid, found.st_gid)
