"""What a verifier's verdicts depend on: its code as it was loaded, and versions of libraries.

A server of this package has a `verdicts.json` that names the version of its verdicts and the code
that has it. As long as the code is that code, the version stands for it, so that a new release
marks verdicts as older only if it judges differently.

`python -m rollout_kit.serving.fingerprint FOLDER …` writes these files after a change of the code;
raise `version` in them by hand if any verdict has changed.
"""

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from types import CodeType
from typing import Any, cast

import orjson

from ..types import JsonObject

RELEASE = "verdicts.json"

DISTRIBUTIONS = {"yaml": "PyYAML", "PIL": "pillow", "sklearn": "scikit-learn"}
"""Frequent modules with another name; to find those of others takes a quarter of a second."""

OWN = __name__.partition(".")[0]


class LoadedCode:
    """The code of a server as it was when this object was made: the Python files of the folder with
    its `app.py`, or else the file that defines it, or what was typed in."""

    def __init__(
        self, file: Path | None, read: Callable[[], Mapping[str, bytes]] | None = None
    ) -> None:
        """`read` gives the code if there is no file."""
        self._folder = file.parent if file else None
        self._read = partial(read_sources, file) if file else read or dict
        self._sources = self._read()

    def list_changed(self) -> list[str]:
        """Names of files that have changed since."""
        now = self._read()
        names = sorted({*now, *self._sources})
        return [name for name in names if now.get(name) != self._sources.get(name)]

    def identify(self, libraries: Mapping[str, str], settings: JsonObject) -> JsonObject:
        """The fingerprint `verifier`, and what it stands for besides the settings."""
        parts = self.describe(libraries)
        canonical = orjson.dumps({**parts, "settings": settings}, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.blake2b(canonical, digest_size=8).hexdigest()
        return {"verifier": digest, "verifier_parts": parts}

    def describe(self, libraries: Mapping[str, str]) -> JsonObject:
        """`code`, a digest or the name and version of released verdicts, and `libraries`: the given
        versions and those of the libraries that the code imports."""
        code, folder = self._digest, self._folder
        if folder and (release := _read_release(folder)).get("code") == code:
            code = f"{folder.name} {release.get('version')}"
        return {
            "code": code,
            "libraries": {**self._imported, **libraries},
        }

    @cached_property
    def _digest(self) -> str:
        return _digest(self._sources)

    @cached_property
    def _imported(self) -> Mapping[str, str]:
        """The versions of the libraries that the code imports."""
        return find_versions(_list_imports(self._sources))


@cache
def load_code(cls: type) -> LoadedCode:
    """The code of a server's class, read when this is first called for it."""
    try:
        file = Path(inspect.getfile(cls))
    except (TypeError, OSError):  # it was typed in, as in a notebook
        return LoadedCode(None, partial(_read_typed, cls))
    return LoadedCode(file)


def _read_typed(cls: type) -> dict[str, bytes]:
    """Name → compiled code of what a class without a file defines."""
    return {
        f"{each.__qualname__}.{name}": repr(tuple(_read_code(code))).encode()
        for each in cls.__mro__
        if not each.__module__.startswith(OWN)
        for name, found in vars(each).items()
        if (code := _code_of(found)) is not None
    }


def digest_function(function: Callable[..., Any]) -> str:
    """A digest of what a function does; of its name if it has no Python code."""
    code = _code_of(function)
    return _digest({"": repr(tuple(_read_code(code)) if code else function).encode()})


def _code_of(function: object) -> CodeType | None:
    found = getattr(inspect.unwrap(cast(Any, function)), "__code__", None)
    return found if isinstance(found, CodeType) else None


def _read_code(code: CodeType) -> Iterator[object]:
    """What a function does, without where it stands."""
    yield code.co_code, code.co_names
    for constant in code.co_consts:
        if isinstance(constant, frozenset):
            yield sorted(map(repr, constant))
        else:
            yield tuple(_read_code(constant)) if isinstance(constant, CodeType) else constant


def find_versions(names: Iterable[str]) -> dict[str, str]:
    """Distribution → version, for the modules among `names` that are installed."""
    found = {}
    for name in sorted(names):
        for distribution in _find_distributions(name):
            found[distribution] = version(distribution)
    return found


def _find_distributions(module: str) -> list[str]:
    module = DISTRIBUTIONS.get(module, module)
    try:
        version(module)
        return [module]
    except PackageNotFoundError:
        return sorted(set(_modules().get(module, ())))


@cache
def _modules() -> Mapping[str, list[str]]:
    """Module → distributions, for modules with another name than their distribution."""
    return packages_distributions()


def list_sources(file: Path) -> list[Path]:
    """The Python files of a server whose class is in `file`, without its tests."""
    folder = file.parent
    if not (folder / "app.py").is_file():
        return [file]
    return sorted(path for path in folder.rglob("*.py") if folder / "tests" not in path.parents)


def read_sources(file: Path) -> dict[str, bytes]:
    """Name → content of the Python files of a server."""
    found = {}
    for path in list_sources(file):
        with suppress(OSError):  # it was removed meanwhile
            found[str(path.relative_to(file.parent))] = path.read_bytes()
    return found


def _digest(sources: Mapping[str, bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, source in sources.items():
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _read_release(folder: Path) -> JsonObject:
    try:
        found = orjson.loads((folder / RELEASE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _list_imports(sources: Mapping[str, bytes]) -> set[str]:
    """Top-level modules that the code imports, without those of Python, of the folder, of this
    package, and of what this package needs itself."""
    found = set()
    nodes: list[ast.AST] = []
    for source in sources.values():
        with suppress(SyntaxError, ValueError):
            nodes += ast.walk(ast.parse(source))
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    own = {Path(name).parts[0].removesuffix(".py") for name in sources}
    return found - own - sys.stdlib_module_names - {OWN} - _list_core()


@cache
def _list_core() -> frozenset[str]:
    try:
        needed = requires("rollout-kit") or []
    except PackageNotFoundError:
        needed = []
    names = (re.match(r"[\w.-]+", each) for each in needed if "extra ==" not in each)
    return frozenset(name[0].replace("-", "_") for name in names if name)


def main(folders: Iterable[str]) -> None:
    for folder in map(Path, folders):
        known = _read_release(folder)
        release = {
            "version": known.get("version", 1),
            "code": _digest(read_sources(folder / "app.py")),
        }
        (folder / RELEASE).write_bytes(
            orjson.dumps(release, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )


if __name__ == "__main__":
    main(sys.argv[1:])
