"""Whether the code of a server has changed since this process imported it.

A notebook imports a server once and then edits it: the next run has to have the new code. A run
that goes on keeps the code that it began with.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ..errors import ConfigError

INSTALLED = ("site-packages", "dist-packages")
"""Folders with packages that nobody edits."""

OWN = Path(__file__).resolve().parents[1]


class FileState(NamedTuple):
    """Of a file; two that are equal mean the same content."""

    mtime_ns: int
    size: int


_inside: dict[str, dict[Path, FileState | None]] = {}
"""Package of a server → the files of its modules, as they were imported."""

_outside: dict[str, dict[Path, FileState | None]] = {}
"""The same of modules elsewhere in the user's folder, which other code may use too."""


_unchecked: set[str] = set()
"""Packages that may have changed since the present run began."""


def look_again() -> None:
    """A run begins: each server that it uses is checked once."""
    _unchecked.update(_inside)


def note(package: str, folder: Path) -> None:
    """Remember the files behind the modules of a server, whose own are in `folder`."""
    own = list(_modules_of(package))
    _inside[package] = {path: _state_of(path) for path in filter(None, map(_file_of, own))}
    outside = _find_outside(own, folder)
    _outside[package] = {path: _state_of(path) for path in outside}


def has_changed(package: str) -> bool:
    """Whether a file of the server has changed until the run began; ConfigError if it is one of a
    module that other code of this process may use."""
    if package not in _unchecked:
        return False
    _unchecked.discard(package)
    for path, state in _outside.get(package, {}).items():
        if _state_of(path) != state:
            raise ConfigError(
                f"{path} has changed since this process imported it, and a server uses it: start"
                " the process again (in a notebook, the kernel)"
            )
    return any(_state_of(path) != state for path, state in _inside.get(package, {}).items())


def forget(package: str) -> None:
    """Have the modules of a server imported anew."""
    for path in _inside.pop(package, {}):
        # compiled code counts as current within the second in which its source was written
        with suppress(OSError, NotImplementedError):
            Path(cache_from_source(str(path))).unlink(missing_ok=True)
    for module in list(_modules_of(package)):
        del sys.modules[module.__name__]
    sys.modules.pop(package, None)
    importlib.invalidate_caches()


def _modules_of(package: str) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
            yield module


def _find_outside(modules: list[ModuleType], folder: Path) -> set[Path]:
    """The files of the modules that these use, in the folder with all servers of the user."""
    root, found, left = folder.parents[1], set[Path](), list(modules)
    seen = {id(each) for each in modules}
    while left:
        for used in _uses(left.pop()):
            path = _file_of(used)
            if id(used) in seen or path is None or not path.is_relative_to(root):
                continue
            seen.add(id(used))
            is_installed = not {*path.parts}.isdisjoint(INSTALLED) or path.is_relative_to(OWN)
            if not (is_installed or path.is_relative_to(folder)):
                found.add(path)
                left.append(used)
    return found


def _uses(module: ModuleType) -> Iterator[ModuleType]:
    """The modules whose names, or whose functions and classes, a module has."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value
        elif isinstance(name := getattr(value, "__module__", None), str) and name in sys.modules:
            yield sys.modules[name]


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file else None


def _state_of(path: Path) -> FileState | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return FileState(found.st_mtime_ns, found.st_size)
