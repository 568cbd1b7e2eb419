"""Environments for the checkout's servers: each made once, with uv, and shared by all that need the
same.

They hold what NeMo Gym and a server require. NeMo Gym itself is imported from the checkout.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import orjson

from ...errors import ConfigError, how_to_install
from ...reading import cache_folder
from ..registry import is_checkout
from .checkout import GymServer, read_gym_project

READY = "rollout_kit.json"
"""File that an environment has once it is complete."""

COST = "about 1 GB, less where uv shares files with other environments, and a minute or two"
"""What NeMo Gym's own requirements take."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What an interpreter must have for a server."""

    folder: Path
    python: str
    requirements: tuple[str, ...]
    own: tuple[str, ...]
    """Those of the server."""
    cwd: Path = field(compare=False)
    """Where relative paths in the requirements begin."""

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        return (self.folder / READY).is_file()

    def make(self, say: Callable[[str], None]) -> None:
        """Make it; ConfigError with uv's last words if that fails."""
        uv, partial = find_uv(), self.folder.with_suffix(".partial")
        say(f"making {self.folder} for {', '.join(self.own) or 'NeMo Gym'}: {COST}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        self._run([*uv, "venv", "--quiet", "--relocatable", "--python", self.python, str(partial)])
        listed = partial / "requirements.txt"
        listed.write_text("\n".join(self.requirements) + "\n")
        install = ["pip", "install", "--compile-bytecode", "--python", str(partial / "bin/python")]
        self._run([*uv, *install, "-r", str(listed)])
        (partial / READY).write_bytes(orjson.dumps({"requirements": self.requirements}))
        shutil.rmtree(self.folder, ignore_errors=True)
        partial.rename(self.folder)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.cwd, capture_output=True, text=True, check=False)
        if done.returncode:
            last = "\n  ".join(done.stderr.strip().splitlines()[-8:])
            hint = "; python_version: <version or path> in env.yaml names another interpreter"
            hint = hint if "venv" in command else ""
            raise ConfigError(f"{' '.join(command[:6])} … failed{hint}:\n  {last}")


def environment_of(server: GymServer, python: str | None = None) -> Environment:
    """The environment of a server, which may not exist yet."""
    project = read_gym_project(server.root)
    own, extras = server.requirements
    requirements = (*project.dependencies(*extras), *own)
    python = python or project.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    # a path in a requirement means another thing in another folder
    place = str(server.folder) if any("./" in each for each in own) else ""
    identity = orjson.dumps([python, requirements, place])
    if (cache := cache_folder()) is None:
        raise ConfigError(
            "there is no home folder for the environments of NeMo Gym's servers: set XDG_CACHE_HOME"
            " to a folder"
        )
    folder = cache / "nemo_gym" / hashlib.sha256(identity).hexdigest()[:16]
    return Environment(folder, python, requirements, tuple(own), server.folder)


def find_uv() -> list[str]:
    """The command that starts uv."""
    if found := shutil.which("uv"):
        return [found]
    if find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    raise ConfigError(f"uv makes the environments of NeMo Gym's servers: {how_to_install('uv')}")


def interpreter_for(
    name: str,
    server: GymServer,
    given: str | None,
    *,
    install: bool,
    python: str | None,
    say: Callable[[str], None],
) -> str:
    """The interpreter of a server: the given one, or that of its environment, which is made on
    demand. ConfigError says how to get it."""
    if given:
        return given
    if not is_checkout(server.root):
        raise ConfigError(
            f"{name}: {server.folder} is written for NeMo Gym: name an interpreter that has it,"
            " python: …/bin/python, or a checkout of it, +nemo_gym=<folder>"
        )
    environment = environment_of(server, python)
    if not environment.is_ready and not install:
        needs = f" and {', '.join(environment.own)}" if environment.own else ""
        raise ConfigError(
            f"{name}: needs an environment with NeMo Gym's requirements{needs}: +install=true makes"
            f" it once, in {environment.folder} ({COST}); or name an interpreter that has them,"
            " +nemo_gym_python=…/bin/python"
        )
    if not environment.is_ready:
        environment.make(say)
    return str(environment.interpreter)
