"""Folders as tar files for sessions."""

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import IO


def keep_plainly(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry of a file that belongs to root, whoever owns it here."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def open_packed(folder: Path) -> int:
    """A descriptor of a tar file with what is in the folder, which the caller closes."""
    file = os.memfd_create("files", os.MFD_CLOEXEC)
    with open(file, "wb", closefd=False) as opened:
        _pack(folder, opened)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def pack_small(folder: Path) -> bytes:
    """The same, compressed, and identical for the same files."""
    file = io.BytesIO()
    _pack(folder, file, is_timeless=True)
    return gzip.compress(file.getvalue(), mtime=0)


def _pack(folder: Path, file: IO[bytes], *, is_timeless: bool = False) -> None:
    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = 0 if is_timeless else member.mtime
        return keep_plainly(member)

    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for each in sorted(folder.iterdir()):
            archive.add(each, arcname=each.name, filter=keep)
