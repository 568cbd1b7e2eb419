"""Measure what a run holds: pages of its processes, its files, and what the kernel keeps for it.
Standard library only, because the zygote measures while it waits for the end of a run.

A control group would count all of this, but needs privileges, and moving each run into one costs
more than the run. Memory that cannot be counted from outside is refused by `seccomp`, or is bounded
by `room.reserve_pipes`.
"""

import os
import re

PAGE = os.sysconf("SC_PAGE_SIZE")

WATCH_S = 0.02
"""Time between two measurements."""

WATCH_SHARE = 0.1
"""Share of its time that the zygote measures at most."""

MAPPING_BYTES = 256
"""What the kernel keeps for each mapping of a process."""

MAPS_SIZE = 4 << 20
"""Only so many bytes of a list of mappings are read, enough for the number that Linux permits."""

SEND_BUFFER = 212_992
"""Linux's default for the bytes that wait in one socket."""

TCP_BYTES = 400 << 10
"""What may wait in one TCP connection of a session; see `session.inside`."""

SMAPS = re.compile(rb"^(Pss|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)


class Memory:
    """Measures the descendants of this process.

    It reads `/proc` through a descriptor, because the root directory of a zygote has none. Sockets
    and files count only if it `is_apart`, with a network and a folder of its own.
    """

    def __init__(self, is_apart: bool) -> None:
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._is_apart = is_apart
        self._num_sockets = 0
        waiting = int(self._read("sys/net/core/wmem_default") or SEND_BUFFER)
        self._socket_bytes = waiting + waiting // 2  # the last packet may be half as large

    def begin(self) -> None:
        """Take the sockets that there are now as the zygote's own."""
        self._num_sockets = self._count_sockets()

    def count_sockets(self) -> int:
        """Unix sockets in the network of the run, also those that no process has open."""
        return max(0, self._count_sockets() - self._num_sockets)

    def measure(self, files: int | None) -> int:
        """Bytes that the descendants hold together; `files` is a descriptor of the folder with
        their files."""
        total = self.count_sockets() * self._socket_bytes
        if files is not None and self._is_apart:
            space = os.fstatvfs(files)
            total += (space.f_blocks - space.f_bfree) * space.f_frsize
        family = self.find_family(os.readlink("self", dir_fd=self._proc))
        return total + sum(map(self._measure_pages, family))

    def find_family(self, ancestor: str) -> list[str]:
        """All descendants of a process."""
        found, waiting = [], self._children(ancestor)
        while waiting:
            process = waiting.pop()
            found.append(process)
            waiting += self._children(process)
        return found

    def measure_session(self, first: str, family: list[str]) -> int:
        """Bytes that the processes of a session hold together, and what may wait in its sockets.
        The pages of mapped files count here too, because its files have a limit apart."""
        sockets = self._count_sockets(first) * self._socket_bytes
        for kind in ("tcp", "tcp6"):
            lines = self._read(f"{first}/net/{kind}", MAPS_SIZE).count(b"\n")
            sockets += max(0, lines - 1) * TCP_BYTES
        return sockets + sum(self._measure_pages(each, with_files=True) for each in family)

    def count_ticks(self, family: list[str]) -> int:
        """CPU time that these processes have used, in ticks; cheap, unlike their memory."""
        total = 0
        for process in family:
            fields = self._read(f"{process}/stat").rpartition(b")")[2].split()
            total += int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0
        return total

    def _measure_pages(self, process: str, with_files: bool = False) -> int:
        """Memory that processes share counts once, and files, which are counted above, not at all.
        Only root sees the mappings of another user's process."""
        if found := dict(SMAPS.findall(self._read(f"{process}/smaps_rollup"))):
            files = 0 if with_files else int(found.get(b"Pss_Shmem", 0))
            size = int(found[b"Pss"]) - files << 10
            return size + self._read(f"{process}/maps", MAPS_SIZE).count(b"\n") * MAPPING_BYTES
        if not (sizes := self._read(f"{process}/statm").split()):
            return 0  # the process ended
        return (int(sizes[1]) - int(sizes[2])) * PAGE

    def _children(self, process: str) -> list[str]:
        found: list[str] = []
        try:
            folder = os.open(f"{process}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except OSError:
            return found
        try:
            threads = os.listdir(folder)
        except OSError:  # the process ended
            threads = []
        finally:
            os.close(folder)
        for thread in threads:
            found += self._read(f"{process}/task/{thread}/children").decode().split()
        return found

    def _count_sockets(self, process: str = "self") -> int:
        if not self._is_apart:
            return 0
        return self._read(f"{process}/net/unix", MAPS_SIZE).count(b"\n")

    def _read(self, path: str, size: int = PAGE) -> bytes:
        """The start of a file; nothing if it cannot be read."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return b""
        parts = []
        try:
            while size > 0 and (part := os.read(file, min(size, 1 << 16))):
                parts.append(part)
                size -= len(part)
        except OSError:
            pass
        finally:
            os.close(file)
        return b"".join(parts)
