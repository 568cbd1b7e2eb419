"""A checkout of NeMo Gym: which folders of it hold servers, and what their code needs."""

import hashlib
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_string
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

import orjson

from ...errors import ConfigError
from ...types import JsonObject
from ..registry import TYPES, is_checkout, is_for_nemo_gym
from .environment_servers import TYPE as ENVIRONMENTS
from .row_schema import MODULE

RAY = re.compile(r"^\s*(?:from|import)\s+ray\b", re.M)

OF_ITSELF = re.compile(
    r"^(?:-e\s+)?(?:nemo[-_]gym(?:\[(?P<extras>[\w,\s-]*)\])?\s*(?:@.*)?|\.\.?/\S*)$"
)
"""A line of a requirements file that stands for NeMo Gym itself."""

INSTALLED = "installed:"
"""In `nemo_gym`, before an interpreter that has NeMo Gym."""

WHERE = """
from importlib.util import find_spec
from pathlib import Path
found = find_spec("nemo_gym")
assert found is not None, "it is not installed there"
print(Path(found.origin).parents[1])
"""

ALL = "all"
"""In place of names: every server for which the checkout has code."""

OF_EXTRA = re.compile(r"(?P<what>.*);\s*extra == ['\"](?P<extra>[\w-]+)['\"]")
"""A requirement in the metadata of a wheel that belongs to an extra."""

UNUSED_EXTRAS = frozenset({"dev"})

STATE = ("seed_session", ".post(", ".api_route(", ".add_api_route(")
"""What the code of a resources server with state of its own mentions."""


@dataclass(frozen=True)
class GymServer:
    """The folder of a server's code, in a checkout or beside an installed NeMo Gym."""

    folder: Path
    root: Path
    type: str
    further: tuple[str, ...] = ()
    """What it needs besides what its folder says."""

    @cached_property
    def sources(self) -> dict[str, str]:
        """Its Python files by their place, without its tests."""
        files = sorted(self.folder.rglob("*.py"))
        named = {str(path.relative_to(self.folder)): path for path in files}
        return {
            name: path.read_text("utf-8", "replace")
            for name, path in named.items()
            if not {"tests", ".venv"} & {*path.relative_to(self.folder).parts}
        }

    @property
    def asks_for_ray(self) -> bool:
        return any(RAY.search(text) for text in self.sources.values())

    @property
    def has_schema(self) -> bool:
        """Whether its folder has a schema of its rows."""
        return (self.folder / MODULE).is_file()

    @property
    def reverify(self) -> str:
        """How a stored response can be verified again: declared, or from the lack of any state."""
        app = self.sources["app.py"]
        if "ReverifyMode.STATELESS" in app:
            return "stateless"
        declared = "ReverifyMode." in app
        return "never" if declared or any(word in app for word in STATE) else "stateless"

    @property
    def digest(self) -> str:
        """Identifies the code."""
        return hashlib.sha256(orjson.dumps(self.sources)).hexdigest()[:16]

    @cached_property
    def requirements(self) -> tuple[list[str], list[str]]:
        """What its code needs besides NeMo Gym, and which extras of NeMo Gym."""
        extras: list[str] = []
        wanted: list[str] = []
        for line in (*self._lines(), *self.further):
            if match := OF_ITSELF.fullmatch(line):
                extras += [each.strip() for each in (match["extras"] or "").split(",")]
            else:
                wanted.append(line)
        return wanted, sorted({*extras} - UNUSED_EXTRAS - {""})

    def _lines(self) -> Iterator[str]:
        try:
            text = (self.folder / "requirements.txt").read_text("utf-8")
        except FileNotFoundError:
            yield from read_project(self.folder / "pyproject.toml").dependencies()
            return
        for line in text.splitlines():
            if stripped := re.sub(r"(^|\s)#.*", "", line).strip():
                yield stripped


@dataclass(frozen=True)
class Project:
    """The `[project]` table of a `pyproject.toml`."""

    table: JsonObject
    sources: JsonObject

    def dependencies(self, *extras: str) -> list[str]:
        """Its requirements; those that it takes from a git repository say so."""
        optional = self.table.get("optional-dependencies", {})
        named = [self.table.get("dependencies", ()), *(optional.get(each, ()) for each in extras)]
        return [self._with_source(each) for group in named for each in group]

    def _with_source(self, requirement: str) -> str:
        source = self.sources.get(requirement, {})
        git, commit = source.get("git"), source.get("rev") or source.get("branch")
        return f"{requirement} @ git+{git}{'@' + commit if commit else ''}" if git else requirement

    @property
    def python(self) -> str:
        """The version that it asks for, as 3.13."""
        found = re.search(r"3\.\d+", self.table.get("requires-python", ""))
        return found[0] if found else ""


def read_project(path: Path) -> Project:
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Project({}, {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from None
    sources = tree.get("tool", {}).get("uv", {}).get("sources", {})
    return Project(tree.get("project", {}), sources)


def read_gym_project(root: Path) -> Project:
    """What NeMo Gym itself needs: from its pyproject.toml, or from the metadata of its wheel."""
    metadata = next(iter(sorted(root.glob("nemo_gym-*.dist-info/METADATA"))), None)
    if metadata is None or (root / "pyproject.toml").is_file():
        return read_project(root / "pyproject.toml")
    told = message_from_string(metadata.read_text("utf-8", "replace"))
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    for requirement in told.get_all("Requires-Dist") or ():
        if match := OF_EXTRA.fullmatch(requirement):
            extras.setdefault(match["extra"], []).append(match["what"].strip())
        else:
            needed.append(requirement)
    python = told.get("Requires-Python", "")
    table = {"dependencies": needed, "optional-dependencies": extras, "requires-python": python}
    return Project(table, {})


@dataclass(frozen=True)
class Gym:
    """Where a command takes NeMo Gym's code from, and which of it in place of ours."""

    root: Path | None
    cwd: Path
    preferred: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tree: JsonObject, cwd: Path) -> Self:
        """As the keys `nemo_gym` and `nemo_gym_code` say."""
        names = tree.get("nemo_gym_code") or []
        names = [names] if isinstance(names, str) else names
        return cls(locate(tree.get("nemo_gym"), cwd), cwd, frozenset(map(str, names)))

    def prefers(self, *names: str) -> bool:
        return not self.preferred.isdisjoint({*names, ALL})

    def find(self, type_: str, implementation: str) -> GymServer | None:
        """The implementation that is written for NeMo Gym: in the checkout, or in the working
        directory beside an installed NeMo Gym."""
        parts = Path(implementation).parts  # some are folders of folders
        if type_ not in (*TYPES, ENVIRONMENTS) or not parts or {"/", ".."} & {*parts}:
            return None
        for root in dict.fromkeys(filter(None, (self.root, self.cwd.resolve()))):
            app = root / type_ / implementation / "app.py"
            if app.is_file() and is_for_nemo_gym(app):
                return GymServer(app.parent, root, type_)
        return None

    def has(self, *kind: str) -> bool:
        """Whether there is code of NeMo Gym's for a type and an implementation."""
        return len(kind) == 2 and self.find(*kind) is not None

    def find_file(self, path: str, *folders: Path) -> Path | None:
        """A file that a YAML of NeMo Gym names by a relative path."""
        if Path(path).is_absolute() or self.root is None:
            return None
        places = (place / path for place in (self.cwd, *folders, self.root))
        return next((place.resolve() for place in places if place.exists()), None)


def locate(given: str | Path | None, cwd: Path) -> Path | None:
    """The checkout: the folder that `nemo_gym` names, or the working directory if it is one."""
    if given is None:
        return cwd.resolve() if is_checkout(cwd) else None
    if (python := find_interpreter(given)) is not None:
        return _locate_installed(python)
    root = (cwd / Path(given).expanduser()).resolve()
    if not is_checkout(root):
        raise ConfigError(
            f"nemo_gym: {root} is no checkout of NeMo Gym, it has no nemo_gym/__init__.py: clone"
            " https://github.com/NVIDIA-NeMo/Gym, and name that folder"
        )
    return root


def find_interpreter(given: Any) -> str | None:
    """The interpreter that `nemo_gym: installed:<python>` names; None if it names a folder."""
    text = str(given or "")
    return text.removeprefix(INSTALLED) if text.startswith(INSTALLED) else None


@cache
def _locate_installed(python: str) -> Path:
    """The folder that an interpreter has NeMo Gym in; ConfigError if it has none."""
    asked = [os.path.expanduser(python), "-c", WHERE]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise ConfigError(
            f"nemo_gym: {python} has no NeMo Gym: {said.strip().splitlines()[-1]}"
        ) from None
    return Path(done.stdout.strip())
