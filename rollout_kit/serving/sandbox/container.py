"""A zygote in a container of Podman or Docker, for machines that forbid namespaces to this process.

The container has no network, no capabilities that a run keeps, a read-only root, and its own
processes; the zygote is the first of them. Its socket reaches the keeper through a mounted folder.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from .keeper import ENVIRONMENT, Zygote
from .limits import SandboxError, SandboxLimits

ENGINES = ("podman", "docker")

START = """\
import os, socket, sys
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect("/control/socket")
os.dup2(control.fileno(), 0)
control.close()
sys.path.append("/kit")
from rollout_kit.serving.sandbox.zygote import main
main("container", "0", "", *sys.argv[1:])
"""

OPTIONS = (
    *("run", "--rm", "--network=none", "--ipc=none", "--read-only", "--user=0:0", "--workdir=/"),
    *("--cap-drop=all", "--cap-add=SETUID", "--cap-add=SETGID", "--cap-add=KILL", "--entrypoint="),
    *("--security-opt=no-new-privileges", "--security-opt=label=disable"),
    *("--ulimit=nofile=1024:1024", "--ulimit=core=0:0"),
)
"""The zygote needs the three capabilities to become another user for a run, and to end it."""

OF_PODMAN = ("--read-only-tmpfs=false",)
"""Without it Podman makes further folders writable."""

START_S = 600.0
"""Time limit for starting a container: the engine may have to load the image first."""

POLL_S = 0.02

HINTS = ("Run '", "See '")
"""Beginnings of Docker's lines that explain nothing."""


@dataclass(frozen=True, slots=True)
class Container:
    """An image with Python 3.11 or newer as `python3`; runs import what is installed in it."""

    image: str
    engine: str | None = None
    """The engine's command; None takes the first of ENGINES that is installed."""
    options: Sequence[str] = ()
    """Further words of the engine's `run`."""

    def find_engine(self) -> str:
        """The path of the engine's command, or ConfigError."""
        names = [self.engine] if self.engine else ENGINES
        if found := next(filter(None, map(shutil.which, names)), None):
            return found
        raise ConfigError(
            f"container_image: {self.image} needs {' or '.join(names)}, which is not installed"
            " here: install it, or name another command with container_engine"
        )


class ContainerZygote(Zygote):
    """A zygote that is the first process of a container."""

    def __init__(self, container: Container, folders: Sequence[Path]) -> None:
        self._engine = container.find_engine()
        self._is_ready = self.is_spent = False
        self._folder = tempfile.mkdtemp(prefix="rollout-kit-")
        self._name = Path(self._folder).name
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(f"{self._folder}/socket")
        self._listening.listen(1)
        self._listening.setblocking(False)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is killed
        self._process = subprocess.Popen(
            [self._engine, *self._words(container, folders)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
        )

    def _words(self, container: Container, folders: Sequence[Path]) -> list[str]:
        places = {
            self._folder: "/control",
            str(Path(__file__).parent): "/kit/rollout_kit/serving/sandbox",
        }
        inside = [f"/folders/{number}" for number in range(len(folders))]
        places |= {str(folder): place for folder, place in zip(folders, inside, strict=True)}
        own = OF_PODMAN if Path(self._engine).name == "podman" else ()
        space = f"/tmp:rw,nosuid,nodev,mode=1777,size={SandboxLimits().files_mb}m"
        return [
            *(*OPTIONS, *own, f"--name={self._name}", f"--tmpfs={space}"),
            *(f"--volume={folder}:{place}:ro" for folder, place in places.items()),
            *(f"--env={name}={value}" for name, value in ENVIRONMENT.items() if name != "PATH"),
            *container.options,
            *(container.image, "python3", "-SsPB", "-c", START, *inside, "--packages"),
        ]

    async def ready(self) -> None:
        if not self._is_ready:
            try:
                async with asyncio.timeout(START_S):
                    self._control = await self._accept()
            except TimeoutError:
                raise SandboxError(f"no container started within {START_S:g} s") from None
            os.unlink(f"{self._folder}/socket")
        await super().ready()

    async def _accept(self) -> socket.socket:
        while True:
            with suppress(BlockingIOError):
                control, _ = self._listening.accept()
                control.setblocking(False)
                return control
            if self._process.poll() is not None:
                self._said.seek(0)
                words = self._said.read().decode(errors="replace").strip().splitlines()
                words = [word for word in words if word and not word.startswith(HINTS)]
                reason = words[-1] if words else f"status {self._process.returncode}"
                raise SandboxError(f"{Path(self._engine).name} cannot run a container: {reason}")
            await asyncio.sleep(POLL_S)

    async def kill(self) -> None:
        """End the container; it also ends by itself when its socket is closed."""
        self._listening.close()
        if self._is_ready:
            self._control.close()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        if self._process.poll() is None:
            remove = [self._engine, "rm", "--force", self._name]
            subprocess.run(remove, check=False, capture_output=True)
            self._process.kill()
        self._process.wait()
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)
