"""Writes a page to a file."""

from pathlib import Path

from ..errors import ConfigError, OutputError
from ..store.files import write_atomically

BEGIN = b"<!doctype html>"


def check_replaceable(path: Path) -> None:
    """ConfigError if there is a file that is no page: it would be lost."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as stream:
            begin = stream.read(len(BEGIN)).lower()
        if begin != BEGIN:
            raise ConfigError(f"{path} exists, and is no page: remove it, or choose another name")


def write_page(path: Path, content: str) -> None:
    """Replace the page atomically; OutputError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    write_atomically(path, content.encode())
