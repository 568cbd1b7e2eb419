"""What a process holds: its environment, its arguments and its memory."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from support import read_process

CHUNK = 16 << 20
"""Bytes of memory that are read at once; pieces overlap by the longest text looked for."""


def find_held(pid: int, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Each place in which the process holds one of the texts: `environ`, `cmdline` or `memory`."""
    texts = list(texts)
    places = {name: read_process(pid, name) for name in ("environ", "cmdline")}
    assert places["cmdline"], f"process {pid} has ended"
    found = [(place, text) for place, said in places.items() for text in texts if text in said]
    overlap = max(len(text.encode()) for text in texts)
    seen = {text for piece in _memory(pid, overlap) for text in texts if text.encode() in piece}
    return [*found, *(("memory", text) for text in sorted(seen))]


def _memory(pid: int, overlap: int) -> Iterator[bytes]:
    """The anonymous memory of a process, in pieces."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in read_process(pid, "maps").splitlines():
            addresses, rights, _, _, inode, *name = line.split()
            if "r" not in rights or inode != "0" or name in (["[vvar]"], ["[vsyscall]"]):
                continue
            at, end = (int(each, 16) for each in addresses.split("-"))
            while at < end:
                size = min(CHUNK, end - at)
                with suppress(OSError):  # not all of what is mapped can be read
                    yield os.pread(memory.fileno(), size, at)
                at += size if at + size == end else size - overlap
