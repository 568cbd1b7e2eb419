"""Write a tar file of a session's changes as a layer: a folder that lies over another one.

The tar file is of a session, so it is not trusted: every folder on the way to a file is opened
without following links. Standard library only.
"""

import json
import os
import stat
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ..session.files import REMOVED

FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY | os.O_CLOEXEC

MAX_FILES = 2_000_000


def write_layer(file: BinaryIO, target: Path) -> int:
    """Extract the tar file into the folder `target`; the number of bytes of its files. What was
    removed is marked, as overlay file systems do."""
    size, removed = 0, list[str]()
    top = os.open(target, FOLDER)
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for place, member in enumerate(archive):
                if place > MAX_FILES:
                    raise ValueError(f"more than {MAX_FILES:,} files")
                if not place and member.name == REMOVED:
                    listed = archive.extractfile(member)
                    removed = json.loads(listed.read()) if listed else []
                    continue
                size += _write(top, archive, member)
        for path in removed:
            _mark_removed(top, path)
    finally:
        os.close(top)
    return size


def _open_parent(top: int, parts: list[str]) -> int:
    """The folder of a file, made if it is not there; OSError if a link is on the way."""
    current = os.dup(top)
    for part in parts:
        with suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=current)
        try:
            inner = os.open(part, FOLDER, dir_fd=current)
        finally:
            os.close(current)
        current = inner
    return current


def _split(path: str) -> tuple[list[str], str]:
    parts = [each for each in path.split("/") if each not in ("", ".")]
    if not parts or ".." in parts:
        raise ValueError(f"no path of a file: {path!r}")
    return parts[:-1], parts[-1]


def _write(top: int, archive: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    folders, name = _split(member.name)
    parent = _open_parent(top, folders)
    try:
        size = 0
        if member.isdir():
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
        elif member.islnk():
            to_folders, to_name = _split(member.linkname)
            to = _open_parent(top, to_folders)
            try:
                os.link(to_name, name, src_dir_fd=to, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(to)
            return 0
        elif member.isreg() and (source := archive.extractfile(member)) is not None:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as out:
                while part := source.read(1 << 20):
                    out.write(part)
                    size += len(part)
        else:
            return 0
        _set_marks(parent, name, member)
        return size
    finally:
        os.close(parent)


def _set_marks(parent: int, name: str, member: tarfile.TarInfo) -> None:
    """Owner, mode and time. No program of a layer may change its user, on this machine neither."""
    if os.geteuid() == 0:
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    if not member.issym():
        os.chmod(name, member.mode & 0o1777, dir_fd=parent)
    times = (int(member.mtime), int(member.mtime))
    os.utime(name, times, dir_fd=parent, follow_symlinks=False)


def _mark_removed(top: int, path: str) -> None:
    folders, name = _split(path)
    try:
        parent = _open_parent(top, folders)
    except OSError:  # a folder above it is removed too, and marked
        return
    try:
        with suppress(FileExistsError):
            os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=parent)
    finally:
        os.close(parent)
