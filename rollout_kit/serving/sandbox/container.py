"""Programs of the sandbox in a container, for machines that forbid namespaces to this process.

The container has no network, and its own processes. The program is the first of them. Its socket
reaches this process through a mounted folder.
"""

import asyncio
import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from ...errors import ConfigError
from ..service import OPERATIONAL
from .keeper import ENVIRONMENT, Zygote
from .limits import SandboxError, SandboxLimits

KIT = Path(__file__).parent

ENGINES = ("podman", "docker", "apptainer")

CONNECT = """\
import os, socket, sys
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect("/control/socket")
os.dup2(control.fileno(), 0)
control.close()
sys.path.append("/kit")
"""
"""How a program begins: the socket is its standard input."""

START = """\
from rollout_kit.serving.sandbox.zygote import main
main("container", "0", "", *sys.argv[1:])
"""

OPTIONS = (
    *("run", "--rm", "--network=none", "--user=0:0", "--workdir=/", "--entrypoint="),
    *("--security-opt=label=disable", "--ulimit=core=0:0"),
)

OF_ZYGOTE = (
    *("--ipc=none", "--read-only", "--security-opt=no-new-privileges"),
    *("--cap-drop=all", "--cap-add=SETUID", "--cap-add=SETGID", "--cap-add=KILL"),
    "--ulimit=nofile=1024:1024",
)
"""The zygote needs the three capabilities to become another user for a run, and to end it."""

OF_APPTAINER = (
    *("exec", "--containall", "--no-init", "--net", "--network=none", "--no-home", "--pwd=/"),
)

OF_PODMAN = ("--read-only-tmpfs=false",)
"""Without it Podman makes further folders writable."""

MAX_PROCESSES = 1 << 15
"""Of a container. Runs and sessions have limits of their own."""

START_S = 600.0
"""Time limit for starting a container: the engine may have to load the image first."""

POLL_S, REMOVE_S = 0.02, 60.0

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
        wanted = self.engine or "podman, docker or apptainer"
        raise ConfigError(
            f"container_image: {self.image} needs {wanted}, which is not installed here: install"
            " it, or name another command with container_engine"
        )

    @property
    def kind(self) -> str:
        """Which of ENGINES it is: `podman-remote` is a podman. Others take docker's words."""
        name = Path(self.find_engine()).name
        return next((each for each in ENGINES if name.startswith(each)), "docker")


class ContainerConfig(BaseModel):
    """Keys of a server that can do its work in a container."""

    container_image: str | None = Field(
        None, description="Image of a container in which the code runs. It needs python3."
    )
    container_engine: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Command that starts containers. Default: podman, else docker, else apptainer.",
    )
    container_options: list[str] = Field(
        [],
        json_schema_extra=OPERATIONAL,
        description="Additional arguments of the container engine's run.",
    )

    @property
    def container(self) -> Container | None:
        if self.container_image is None:
            return None
        return Container(self.container_image, self.container_engine, self.container_options)


class ContainerProcess:
    """A program of the sandbox that is the first process of a container.

    `start` is its Python code, `options` are those of the engine's `run`, and `volumes` says which
    path of this machine is read where."""

    def __init__(
        self,
        container: Container,
        start: str,
        options: Sequence[str],
        volumes: Mapping[str, str],
        words: Sequence[str],
    ) -> None:
        self._engine, self._is_apptainer = container.find_engine(), container.kind == "apptainer"
        self._folder = tempfile.mkdtemp(prefix="rollout-kit-")
        self._name = Path(self._folder).name
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(f"{self._folder}/socket")
        self._listening.listen(1)
        self._listening.setblocking(False)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it ends
        kit = {self._folder: "/control", str(KIT): "/kit/rollout_kit/serving/sandbox"}
        processes = limit_to(resource.RLIMIT_NPROC, MAX_PROCESSES)
        of_engine = [*OPTIONS, f"--name={self._name}", f"--ulimit=nproc={processes}", *options]
        given = OF_APPTAINER if self._is_apptainer else of_engine
        bind = "bind" if self._is_apptainer else "volume"
        self._process = subprocess.Popen(
            [
                *(self._engine, *given),
                *(f"--{bind}={path}:{place}:ro" for path, place in {**kit, **volumes}.items()),
                *container.options,
                *(container.image, "python3", "-SsPB", "-c", CONNECT + start, *words),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
        )

    async def connect(self) -> socket.socket:
        """The socket of the program, once; SandboxError if the container does not start."""
        try:
            async with asyncio.timeout(START_S):
                control = await self._accept()
        except TimeoutError:
            raise SandboxError(f"no container started within {START_S:g} s") from None
        os.unlink(f"{self._folder}/socket")
        return control

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

    def end(self) -> None:
        """End the container; it also ends by itself when its socket is closed."""
        self._listening.close()
        if self._process.poll() is None:
            if not self._is_apptainer:
                remove = [self._engine, "rm", "--force", self._name]
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(remove, check=False, capture_output=True, timeout=REMOVE_S)
            self._process.kill()
        self._process.wait()
        self._said.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def limit_to(kind: int, most: int) -> str:
    """A limit for an engine that may have no right to raise this process's own."""
    hard = resource.getrlimit(kind)[1]
    found = most if hard == resource.RLIM_INFINITY else min(most, hard)
    return f"{found}:{found}"


class ContainerZygote(Zygote):
    """A zygote that is the first process of a container, with a read-only root and no capabilities
    that a run keeps."""

    def __init__(self, container: Container, folders: Sequence[Path]) -> None:
        if container.kind == "apptainer":
            raise ConfigError(f"{container.find_engine()}: code runs in Podman or Docker only")
        self._is_ready = self.is_spent = False
        inside = [f"/folders/{number}" for number in range(len(folders))]
        volumes = {str(folder): place for folder, place in zip(folders, inside, strict=True)}
        space = f"/tmp:rw,nosuid,nodev,mode=1777,size={SandboxLimits().files_mb}m"
        given = {name: value for name, value in ENVIRONMENT.items() if name != "PATH"}
        options = [
            *(*OF_ZYGOTE, *(OF_PODMAN if container.kind == "podman" else ()), f"--tmpfs={space}"),
            *(f"--env={name}={value}" for name, value in given.items()),
        ]
        self._running = ContainerProcess(
            container, START, options, volumes, [*inside, "--packages"]
        )

    async def ready(self) -> None:
        if not self._is_ready:
            self._control = await self._running.connect()
        await super().ready()

    async def kill(self) -> None:
        if self._is_ready:
            self._control.close()
        await asyncio.to_thread(self._running.end)
