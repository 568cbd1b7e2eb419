"""Start the warden: as a process of this machine, or as the first process of a container."""

import asyncio
import json
import os
import resource
import socket
import subprocess
from typing import Protocol

from ....types import JsonObject
from ..container import MAX_PROCESSES, Container, ContainerProcess, limit_to
from ..keeper import start_program
from ..limits import SandboxError

ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}

START = """\
import sys
sys.path.append(sys.argv[1])
from rollout_kit.serving.sandbox.session.warden import main
main(*sys.argv[2:])
"""

START_IN_CONTAINER = """\
from rollout_kit.serving.sandbox.session.warden import main
main("", sys.argv[1])
"""

MAX_FILES = 1 << 20
"""That the warden has open for its sessions."""

OPTIONS = (
    *("--cap-add=SYS_ADMIN", "--cap-add=SYS_PTRACE", f"--pids-limit={MAX_PROCESSES}"),
    *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
)
"""The warden makes namespaces, and measures the memory of processes of other users."""

START_S, GRACE_S = 30.0, 10.0

NO_SESSIONS = (
    "this machine cannot keep shell sessions ({why}): they need root with CAP_SYS_ADMIN or user"
    " namespaces, with overlay file systems (Linux 5.11). With Podman or Docker, container_image:"
    " python:3.12-slim keeps them in a container. In Docker: docker run --security-opt"
    " seccomp=unconfined --security-opt apparmor=unconfined; on Ubuntu: sysctl"
    " kernel.apparmor_restrict_unprivileged_userns=0"
)

NO_CONTAINER = (
    "shell sessions cannot be kept in a container of {image} ({why}). The image needs python3, 3.11"
    " or newer, and bash. container_options adds words to the engine's run"
)


class WardenProcess(Protocol):
    def end(self) -> None:
        """Wait until it has ended, after its socket was closed."""
        ...


class StartedWarden:
    """A warden that takes requests at `control`."""

    def __init__(self, control: socket.socket, running: WardenProcess) -> None:
        self.control, self._running = control, running

    async def end(self) -> None:
        """End all sessions, and wait until nothing of them is left."""
        self.control.close()
        await asyncio.to_thread(self._running.end)


async def start_warden(given: JsonObject, container: Container | None) -> StartedWarden:
    """A warden whose sessions start from `given`, the arguments of `ground.prepare`; SandboxError
    if it cannot start."""
    if container is None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        with theirs:
            warden = StartedWarden(control, OwnWarden(theirs, given))
    else:
        running = ContainedWarden(container, given)
        try:
            warden = StartedWarden(await running.connect(), running)
        except BaseException:
            await asyncio.to_thread(running.end)
            raise
    try:
        async with asyncio.timeout(START_S):
            raw = await asyncio.get_running_loop().sock_recv(warden.control, 1 << 16)
        if why := json.loads(raw).get("error") if raw else "the warden ended at once":
            raise SandboxError(why)
    except BaseException:
        await warden.end()
        raise
    return warden


def explain(why: str, container: Container | None) -> str:
    """What to do where no session can be made."""
    if container is None:
        return NO_SESSIONS.format(why=why)
    return NO_CONTAINER.format(why=why, image=container.image)


class OwnWarden:
    """The warden as a child of this process, with which it ends."""

    def __init__(self, control: socket.socket, given: JsonObject) -> None:
        words = [str(os.getpid()), json.dumps(given)]
        self._process = start_program(START, words, control, ENVIRONMENT)

    def end(self) -> None:
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ContainedWarden(ContainerProcess):
    """The warden in a container, which ends with the warden's socket. Without a `root`, sessions
    start from the image."""

    def __init__(self, container: Container, given: JsonObject) -> None:
        seen: dict[str, str] = {}

        def move(folder: str) -> str:
            return seen.setdefault(folder, f"/folders/{len(seen)}")

        given = {
            **given,
            "root": move(given["root"]) if given["root"] else "/",
            "folders": {place: move(each) for place, each in given["folders"].items()},
            "layers": [move(each) for each in given["layers"]],
        }
        unmasked = "unmask=ALL" if container.kind == "podman" else "systempaths=unconfined"
        files = limit_to(resource.RLIMIT_NOFILE, MAX_FILES)
        options = [*OPTIONS, f"--security-opt={unmasked}", f"--ulimit=nofile={files}"]
        super().__init__(container, START_IN_CONTAINER, options, seen, [json.dumps(given)])
