"""Find server folders such as `resources_servers/<name>` and load the class in their `app.py`.

Folders in the working directory take precedence over installed ones; those written for NeMo Gym
are passed over. Modules are imported under
`rollout_kit_servers`, so that they clash with no installed package. Only `load` imports anything.
"""

import importlib.util
import re
import sys
import threading
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from ..errors import ConfigError, suggest
from . import imported
from .service import Service

TYPES = ("responses_api_models", "resources_servers", "responses_api_agents")
"""The kinds of servers: names of the folders and of the keys in YAML."""

OURS = re.compile(r"^\s*(?:from|import)\s+rollout_kit\b", re.MULTILINE)
THEIRS = re.compile(r"^\s*(?:from|import)\s+nemo_gym\b", re.MULTILINE)

PACKAGE = "rollout_kit_servers"
"""Root of the synthetic packages that hold the imported `app` modules."""

IMPORTING = threading.RLock()
"""Held during an import: another thread would take the module before its code has run. An `app.py`
may load another server itself."""


def roots(cwd: Path | None = None, checkout: Path | None = None) -> list[Path]:
    """Folders in which server folders and relative paths are looked up, in order."""
    found = [(cwd or Path.cwd()).resolve()]
    if checkout is not None and checkout not in found:
        found.append(checkout)
    package = Path(__file__).resolve().parents[1]
    # the parent of an installed wheel is site-packages, which may hold other `resources_servers`
    shipped = package / "_shipped"
    installed = shipped if shipped.is_dir() else package.parent
    if installed not in found and any((installed / type_).is_dir() for type_ in TYPES):
        found.append(installed)
    return found


def resolve_path(
    path: str | Path, cwd: Path | None = None, checkout: Path | None = None
) -> Path | None:
    """The existing file for a path from a command or a YAML file; None if there is none."""
    return next((place for place in places(path, cwd, checkout) if place.exists()), None)


def places(path: str | Path, cwd: Path | None = None, checkout: Path | None = None) -> list[Path]:
    """Every place where `path` is looked up, in order."""
    wanted = Path(path).expanduser()
    if wanted.is_absolute():
        return [wanted]
    return [root / wanted for root in roots(cwd, checkout)]


def find(type_: str, implementation: str, cwd: Path | None = None) -> Path | None:
    """The folder that holds the implementation's `app.py`."""
    if not implementation or Path(implementation).name != implementation:
        return None
    for root in roots(cwd):
        folder = root / type_ / implementation
        if (folder / "app.py").is_file() and not is_for_nemo_gym(folder / "app.py"):
            return folder
    return None


def is_checkout(root: Path) -> bool:
    """Whether a folder is a checkout of NeMo Gym."""
    return (root / "nemo_gym" / "__init__.py").is_file()


def is_for_nemo_gym(app: Path) -> bool:
    """Whether a server's code is written for NeMo Gym: only an interpreter of its own loads it."""
    text = app.read_text("utf-8", "replace")
    if OURS.search(text):
        return False
    return THEIRS.search(text) is not None or is_checkout(app.parents[2])


def implementations(type_: str, cwd: Path | None = None) -> list[str]:
    """Names of all implementations of one type, sorted."""
    return sorted(
        {
            app.parent.name
            for root in roots(cwd)
            for app in (root / type_).glob("*/app.py")
            if not is_for_nemo_gym(app)
        }
    )


def load(type_: str, implementation: str, cwd: Path | None = None) -> type[Service]:
    """The server class of an implementation; the same object for the same folder, as long as its
    files are those that were loaded when the run began."""
    if type_ not in TYPES:
        raise ConfigError(f"unknown server type '{type_}'{suggest(type_, TYPES)}")
    folder = find(type_, implementation, cwd)
    if folder is None:
        looked = ", ".join(str(root / type_) for root in roots(cwd))
        known = implementations(type_, cwd)
        elsewhere = [other for other in TYPES if find(other, implementation, cwd)]
        hint = suggest(implementation, known)
        if elsewhere:
            hint = f" (it is one of the {elsewhere[0]})"
        raise ConfigError(
            f"no implementation '{implementation}' among the {type_}{hint}: "
            f"looked for {implementation}/app.py in {looked}"
        )
    with IMPORTING:
        module = _import(type_, implementation, folder)
    return server_class(type_, module)


def server_class(type_: str, module: ModuleType) -> type[Service]:
    """The one Service in `module` that no other class in it extends."""
    own = [one for one in _services(module) if one.__module__ == module.__name__]
    # an app.py may import its server from a sibling module
    sibling = f"{module.__package__}."
    candidates = own or [one for one in _services(module) if one.__module__.startswith(sibling)]
    leaves = [
        one
        for one in candidates
        if not any(other is not one and issubclass(other, one) for other in candidates)
    ]
    right = [one for one in leaves if one.kind == type_]
    if len(right) == 1:
        return right[0]
    names = ", ".join(sorted(one.__name__ for one in right or leaves))
    if right:
        raise ConfigError(f"{module.__file__}: several servers, expected one: {names}")
    found = f", only {names}" if names else ""
    raise ConfigError(f"{module.__file__}: no server for {type_} in it{found}")


def _services(module: ModuleType) -> list[type[Service]]:
    named = {id(value): value for value in vars(module).values()}.values()
    return [one for one in named if isinstance(one, type) and issubclass(one, Service)]


def _import(type_: str, implementation: str, folder: Path) -> ModuleType:
    app = folder / "app.py"
    package = f"{PACKAGE}.{type_}.{implementation}"
    taken = sys.modules.get(package)
    if taken is not None and list(taken.__path__) != [str(folder)]:
        # the same name from another folder: the process has changed its working directory
        package = f"{package}_{sha256(str(folder).encode()).hexdigest()[:12]}"
    name = f"{package}.app"
    if (module := sys.modules.get(name)) is not None:
        if not imported.has_changed(package):
            return module
        imported.forget(package)
    _add_package(PACKAGE, [])
    _add_package(f"{PACKAGE}.{type_}", [])
    _add_package(package, [str(folder)])
    spec = importlib.util.spec_from_file_location(name, app)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        imported.forget(package)
        raise ConfigError(f"{app}: cannot be imported: {_reason(error)}") from error
    imported.note(package, folder)
    return module


def _reason(error: Exception) -> str:
    where = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}{where}"


def _add_package(name: str, folders: list[str]) -> None:
    if name in sys.modules:
        return
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    sys.modules[name] = importlib.util.module_from_spec(spec)
