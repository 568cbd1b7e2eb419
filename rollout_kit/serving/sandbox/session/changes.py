"""What differs between the files of a session and its start, as a tar file. Standard library only.

`find` reads the layers, from the place of the first process; `pack` reads the files as a process of
the session, where no link leads out.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from .files import REMOVED, without_others
from .layers import START
from .patch import is_below, is_opaque, walk_start

PATH = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "opt/bin")

IMPORTED = ("site-packages", "dist-packages")
"""Folders from which Python imports, at its start too."""

PASSING = ("/proc", "/dev", "/sys", "/tmp/.X11-unix")
"""No files of the session."""


class ChangedPaths(NamedTuple):
    """The `paths` that may differ, folders first, each with whether the start has it; and the
    names of the start's `programs`."""

    paths: list[tuple[str, bool]]
    programs: frozenset[str]


class Rules(NamedTuple):
    """What is dropped: all at or below `left_out`, but new files below `open_to_new` that are
    neither called like a program of the start nor imported by Python."""

    left_out: Sequence[str] = ()
    open_to_new: Sequence[str] = ()

    def drop(self, path: str, was: bool, programs: frozenset[str]) -> bool:
        if not any(is_below(path, each) for each in self.left_out):
            return False
        if was or not any(is_below(path, each) for each in self.open_to_new):
            return True
        parts = path.split("/")
        is_imported = any(each in IMPORTED or each.startswith("python") for each in parts)
        return is_imported or parts[-1] in programs


def find(changed: Sequence[tuple[str, list[str]]]) -> ChangedPaths:
    found: dict[str, bool] = {}
    for place, layers in changed:
        for layer in layers:
            for path in _walk(place, layer):
                if path not in found and not any(is_below(path, each) for each in PASSING):
                    found[path] = os.path.lexists(START + path)
    programs: set[str] = set()
    for place in PATH if found else ():
        with suppress(OSError):
            programs.update(os.listdir(f"{START}/{place}"))
    return ChangedPaths(sorted(found.items()), frozenset(programs))


def _walk(place: str, layer: str) -> Iterator[str]:
    for folder, folders, names in os.walk(layer):
        inside = os.path.normpath(place.rstrip("/") + "/" + folder[len(layer) + 1 :])
        if folder != layer and is_opaque(folder):
            yield from walk_start(START + inside)
        for name in (*folders, *names):
            path = os.path.join(inside, name)
            yield path
            if os.path.isdir(START + path) and not os.path.isdir(f"{folder}/{name}"):
                yield from walk_start(START + path)


def pack(found: ChangedPaths, rules: Rules, given: int, out: BinaryIO, most: int) -> None:
    """Write into `given` what is there; then say what is `removed` and `dropped`. ValueError if the
    files have more than `most` bytes."""
    dropped = [path for path, was in found.paths if rules.drop(path, was, found.programs)]
    hidden = set(dropped)
    kept = [(path, was) for path, was in found.paths if path not in hidden]
    removed = [path for path, was in kept if was and not os.path.lexists(path)]
    sizes = (os.lstat(path).st_size for path, _ in kept if os.path.isfile(path))
    if sum(sizes) > most:
        raise ValueError(f"the changed files have more than {most} bytes")
    with (
        open(given, "wb", closefd=False) as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        raw = json.dumps(removed).encode()
        member = tarfile.TarInfo(REMOVED)
        member.size = len(raw)
        archive.addfile(member, io.BytesIO(raw))
        for path, _ in kept:
            if os.path.lexists(path):
                name = path.lstrip("/")
                archive.add(path, arcname=name, recursive=False, filter=without_others)
    shown = [path for path in dropped if not os.path.isdir(path)]
    answer = {"removed": removed[:1_000], "dropped": shown[:100], "num_dropped": len(shown)}
    out.write(json.dumps(answer).encode() + b"\n")
