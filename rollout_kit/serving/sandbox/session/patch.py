"""The difference between the files of a session and its start, as Git writes it. Standard library
only."""

import difflib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from .layers import ROOT, START

OPAQUE = "user.overlay.opaque"

LEFT_OUT = ("/tmp", "/run", "/var/tmp", "/root", "/dev", "/proc", "/var/cache", "/var/log")
"""Where files come and go that are no work."""

MAX_FILE, MAX_LINES = 1 << 20, 4_000
"""A larger file is only named; of one with more lines, all between the first and the last change
is replaced."""


def write_patch(
    changed: Sequence[tuple[str, list[str]]], only: str, most: int, out: BinaryIO
) -> None:
    """Write the patch of what lies at or below `only`, at most `most` bytes and one line."""
    left = most
    for path in sorted(set(_find_changed(changed))):
        if not is_below(path, only) or (only == "/" and _is_left_out(path)):
            continue
        text = "".join(_show(path)).encode(errors="surrogateescape")
        if len(text) > left:
            out.write(b"# the patch is longer: the rest is left out\n")
            return
        left -= len(text)
        out.write(text)


def is_below(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_left_out(path: str) -> bool:
    return "/__pycache__/" in path or any(is_below(path, each) for each in LEFT_OUT)


def _find_changed(changed: Sequence[tuple[str, list[str]]]) -> Iterator[str]:
    """Each path, but of a folder, that may differ."""
    for place, layers in changed:
        for layer in layers:
            for folder, folders, names in os.walk(layer):
                inside = os.path.normpath(place.rstrip("/") + "/" + folder[len(layer) + 1 :])
                if folder != layer and is_opaque(folder):
                    yield from walk_start(START + inside)
                links = [name for name in folders if os.path.islink(f"{folder}/{name}")]
                for name in (*names, *links):
                    path = os.path.join(inside, name)
                    yield path
                    if os.path.isdir(START + path) and not os.path.islink(START + path):
                        yield from walk_start(START + path)


def walk_start(top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        links = [name for name in folders if os.path.islink(f"{folder}/{name}")]
        yield from (f"{folder}/{name}"[len(START) :] for name in (*names, *links))


def is_opaque(folder: str) -> bool:
    try:
        return OPAQUE in os.listxattr(folder, follow_symlinks=False)
    except OSError:
        return False


def _show(path: str) -> Iterator[str]:
    before, after = _read(START + path), _read(ROOT + path)
    if before == after:
        return
    name = path.lstrip("/").replace("\n", "\\n")
    yield f"diff --git a/{name} b/{name}\n"
    if before is None and after is not None:
        yield f"new file mode {after[0]}\n"
    elif after is None and before is not None:
        yield f"deleted file mode {before[0]}\n"
    elif before and after and before[0] != after[0]:
        yield f"old mode {before[0]}\nnew mode {after[0]}\n"
    old, new = before[1] if before else b"", after[1] if after else b""
    if old == new:
        return
    if old is None or new is None or b"\0" in old[:8000] or b"\0" in new[:8000]:
        yield f"Binary files a/{name} and b/{name} differ\n"
        return
    yield f"--- {f'a/{name}' if before else '/dev/null'}\n"
    yield f"+++ {f'b/{name}' if after else '/dev/null'}\n"
    yield from _compare(_lines(old), _lines(new))


def _read(path: str) -> tuple[str, bytes | None] | None:
    """Mode and content; no content if it is no text that can be compared; None if there is no
    file."""
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return "120000", os.readlink(path).encode(errors="surrogateescape")
        if stat.S_ISDIR(found.st_mode):
            return None
        mode = "100755" if found.st_mode & stat.S_IXUSR else "100644"
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > MAX_FILE:
            return mode, b"\0" + f"{found.st_size} {found.st_mtime_ns}".encode()
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return mode, file.read(MAX_FILE)
    except OSError:
        return None


def _lines(data: bytes) -> list[str]:
    *lines, rest = data.decode(errors="surrogateescape").split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


def _compare(old: list[str], new: list[str]) -> Iterator[str]:
    if len(old) + len(new) <= MAX_LINES:
        found = difflib.unified_diff(old, new, n=3)
        lines = list(found)[2:]
    else:
        lines = _replace_middle(old, new)
    for line in lines:
        yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def _replace_middle(old: list[str], new: list[str]) -> list[str]:
    """One hunk, in time that grows with the number of lines."""
    most, first, last = min(len(old), len(new)), 0, 0
    while first < most and old[first] == new[first]:
        first += 1
    while last < most - first and old[-1 - last] == new[-1 - last]:
        last += 1
    removed, added = old[first : len(old) - last], new[first : len(new) - last]
    at = (first + (1 if removed else 0), first + (1 if added else 0))
    head = f"@@ -{at[0]},{len(removed)} +{at[1]},{len(added)} @@\n"
    return [head, *(f"-{line}" for line in removed), *(f"+{line}" for line in added)]
