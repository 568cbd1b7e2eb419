"""Appends whole lines to a file beside an output."""

import os
from pathlib import Path

from ...errors import OutputError


def append_lines(path: Path, raw: bytes) -> None:
    """Write lines behind those of the file, and have them on disk; OutputError if that fails."""
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("a+b") as stream:
            if stream.tell() and os.pread(stream.fileno(), 1, stream.tell() - 1) != b"\n":
                raw = b"\n" + raw  # behind a line that was cut: both would be unreadable
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
