"""Find secrets in files. Reports the place of a secret, never its value."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ...secrets import mask
from .findings import Finding, Invariant


def list_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files among `paths` and in the folders among them."""
    found = set()
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else [path]
        found |= {each for each in inside if each.is_file()}
    return sorted(found)


def find_leaks(paths: Iterable[Path], secrets: frozenset[str]) -> Iterator[Finding]:
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(stream, 1):
                if mask(line, secrets) != line:
                    yield Finding(Invariant.SECRET, "contains a secret", None, path, number)
