"""Secrets that got into files. Says where one stands, and never which."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..secrets import mask
from .findings import Finding, Invariant


def files_below(paths: Iterable[Path]) -> list[Path]:
    """The files among `paths`, and all in the folders among them."""
    found = set()
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else [path]
        found |= {each for each in inside if each.is_file()}
    return sorted(found)


def leaks(paths: Iterable[Path], secrets: frozenset[str]) -> Iterator[Finding]:
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(stream, 1):
                if mask(line, secrets) != line:
                    yield Finding(Invariant.SECRET, "holds a secret", None, path, number)
