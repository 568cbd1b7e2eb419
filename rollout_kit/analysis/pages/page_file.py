"""Writes a page to a file."""

from pathlib import Path

from ...errors import OutputError
from ...store.files import check_replaceable, write_atomically

BEGIN = b"<!doctype html>"


def check_page(path: Path) -> None:
    """ConfigError if there is a file that is no page: it would be lost."""
    check_replaceable(path, "page", _is_page, "name")


def _is_page(path: Path) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return True  # there is nothing to lose
    with path.open("rb") as stream:
        return stream.read(len(BEGIN)).lower() == BEGIN


def write_page(path: Path, content: str) -> None:
    """Replace the page atomically; OutputError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    write_atomically(path, content.encode())
