"""What differs between the files of a session and its start, as a tar file. Standard library only.

`find` reads the layers, from the place of the first process; `pack` reads the files as a process of
the session, where no link leads out.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from .files import REMOVED, without_others
from .layers import START
from .patch import is_below, is_opaque, walk_start

Found = list[tuple[str, bool]]

PASSING = ("/proc", "/dev", "/sys", "/tmp/.X11-unix")
"""No files of the session."""


def find(changed: Sequence[tuple[str, list[str]]]) -> Found:
    """The paths that may differ, folders first, each with whether the start has it."""
    found: dict[str, bool] = {}
    for place, layers in changed:
        for layer in layers:
            for path in _walk(place, layer):
                if path not in found and not any(is_below(path, each) for each in PASSING):
                    found[path] = os.path.lexists(START + path)
    return sorted(found.items())


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


def pack(found: Found, left_out: Sequence[str], given: int, out: BinaryIO) -> None:
    """Write into `given` what is there; then say what is `removed` and `dropped`."""
    dropped = [path for path, _ in found if any(is_below(path, each) for each in left_out)]
    hidden = set(dropped)
    kept = [(path, was) for path, was in found if path not in hidden]
    removed = [path for path, was in kept if was and not os.path.lexists(path)]
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
