"""What a session does with its files for a server, in a process of the session. Standard library
only.

Every path is resolved inside of the session, where a link cannot lead out. An error is text that
the model reads.
"""

import os
import stat
import tarfile
from collections.abc import Callable
from typing import Any, BinaryIO

REMOVED = ".removed"
"""In a tar file of changes, the list of what is gone."""

MAX_BYTES = 8 << 20
"""A larger file is neither read nor edited as a whole."""


class FileRefused(ValueError):
    """The call cannot be done; the text says why."""


def read(request: dict[str, Any], given: int, out: BinaryIO) -> None:
    _answer(out, {}, _read_bytes(request["path"]))


def write(request: dict[str, Any], given: int, out: BinaryIO) -> None:
    data = _read_all(given)
    _write(request["path"], data, request.get("mode"))
    _answer(out, {"num_bytes": len(data)})


def edit(request: dict[str, Any], given: int, out: BinaryIO) -> None:
    path = request["path"]
    data = _read_bytes(path)
    old, new = request["old"].encode(), request["new"].encode()
    if not old:
        raise FileRefused("the text to replace is empty: write_file makes a new file")
    number = data.count(old)
    if not number:
        raise FileRefused(f"{path} does not contain the text to replace{_hint(data, old)}")
    if number > 1 and not request["everywhere"]:
        lines = [str(data[:place].count(b"\n") + 1) for place in _find_places(data, old)]
        raise FileRefused(
            f"{path} contains the text {number} times, in lines {', '.join(lines)}: give more of"
            " the lines around it, or set everywhere"
        )
    mode = stat.S_IMODE(os.stat(path).st_mode)
    _write(path, data.replace(old, new), mode)
    _answer(out, {"num_replaced": number})


def stat_paths(request: dict[str, Any], given: int, out: BinaryIO) -> None:
    """Kind and size of each path."""
    found: dict[str, Any] = {}
    for path in request["paths"]:
        try:
            at = os.lstat(path)
        except OSError:
            found[path] = None
            continue
        kind = "folder" if stat.S_ISDIR(at.st_mode) else "link" if stat.S_ISLNK(at.st_mode) else ""
        kind = kind or ("file" if stat.S_ISREG(at.st_mode) else "other")
        found[path] = {"kind": kind, "size": at.st_size}
    _answer(out, found)


def pack(request: dict[str, Any], given: int, out: BinaryIO) -> None:
    """Write `paths` as a tar file into `given`."""
    with (
        open(given, "wb", closefd=False) as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in request["paths"]:
            if os.path.lexists(path):
                archive.add(path, arcname=path.lstrip("/") or ".", filter=without_others)
    _answer(out, {})


def unpack(request: dict[str, Any], given: int, out: BinaryIO) -> None:
    """Write the files of a tar file; those below `replaced` were there before and go."""
    to = request.get("to", "/")
    for path in request["replaced"]:
        _remove(path)
    with (
        open(given, "rb", closefd=False) as file,
        tarfile.open(fileobj=file, mode="r|") as archive,
    ):
        if hasattr(tarfile, "fully_trusted_filter"):  # the session is the border
            archive.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
        for place, member in enumerate(archive):
            if request.get("whole") and not place and member.name == REMOVED:
                _remove_all(archive.extractfile(member))
                continue
            if request.get("whole"):
                _make_way(os.path.join(to, member.name), member.isdir())
            archive.extract(member, to, numeric_owner=True)
    _answer(out, {})


def _remove_all(listed: Any) -> None:
    import json
    import shutil

    for path in json.loads(listed.read()):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)


def _make_way(path: str, is_folder: bool) -> None:
    """Remove a file where a folder shall be, and what another file must not be written through."""
    import shutil

    if os.path.islink(path) or os.path.isfile(path):
        if not (is_folder and os.path.isdir(path)):
            os.unlink(path)
    elif os.path.isdir(path) and not is_folder:
        shutil.rmtree(path)


def find_user(name: str) -> tuple[int, int, str]:
    """Number, group and home of a user of the session; ValueError if there is none."""
    with open("/etc/passwd") as file:
        lines = [line.rstrip("\n").split(":") for line in file]
    for each in lines:
        if len(each) > 5 and name in (each[0], each[2]):
            return int(each[2]), int(each[3]), each[5]
    if name.isascii() and name.isdigit() and int(name) < 65_534:
        return int(name), int(name), ""
    raise ValueError(f"there is no user '{name}'")


def without_others(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Only files, folders and links; a pipe or a socket is nothing without its process."""
    is_kept = member.isreg() or member.isdir() or member.issym() or member.islnk()
    return member if is_kept else None


def _remove(path: str) -> None:
    import shutil

    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.isdir(path):
        for name in os.listdir(path):  # the folder itself may be the working folder
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                shutil.rmtree(inner)
            else:
                os.unlink(inner)


def _read_bytes(path: str) -> bytes:
    try:
        # a pipe without a writer must not wait
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise FileRefused(f"{path} is a folder: list it with exec")
        if not stat.S_ISREG(found.st_mode):
            raise FileRefused(f"{path} is no regular file")
        if found.st_size > MAX_BYTES:
            raise FileRefused(f"{path} has {found.st_size} bytes, more than {MAX_BYTES}: use exec")
        return _read_all(descriptor, MAX_BYTES)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, most: int = 1 << 40) -> bytes:
    parts = []
    while most > 0 and (part := os.read(descriptor, min(most, 1 << 20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _write(path: str, data: bytes, mode: int | None) -> None:
    if os.path.isdir(path):
        raise FileRefused(f"{path} is a folder")
    if os.path.lexists(path) and not os.path.isfile(path) and not os.path.islink(path):
        raise FileRefused(f"{path} is no regular file")
    try:
        os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        if mode is not None:
            os.chmod(path, mode)
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror}") from None


def _find_places(data: bytes, old: bytes) -> list[int]:
    places, at = [], data.find(old)
    while at >= 0 and len(places) < 10:
        places.append(at)
        at = data.find(old, at + len(old))
    return places


def _hint(data: bytes, old: bytes) -> str:
    """What is near, if the text differs by white space only."""
    wanted = old.split()
    first = wanted[0] if wanted else b""
    for number, line in enumerate(data.split(b"\n"), 1):
        if first and line.split()[:1] == [first]:
            shown = line.decode(errors="replace")[:120]
            return f". Line {number} begins alike: {shown!r}"
    return ""


def _answer(out: BinaryIO, found: dict[str, Any], data: bytes = b"") -> None:
    import json

    out.write(json.dumps(found).encode() + b"\n" + data)


CALLS: dict[str, Callable[[dict[str, Any], int, BinaryIO], None]] = {
    "read": read,
    "write": write,
    "edit": edit,
    "stat": stat_paths,
    "pack": pack,
    "unpack": unpack,
}
