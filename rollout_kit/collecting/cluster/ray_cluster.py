"""Workers on the nodes of a Ray cluster.

Ray places and watches one actor for each worker; the actor starts the worker as a process of its
node. Everything else goes over HTTP between worker and driver. No secret passes through Ray: an
actor gets a ticket that is good for one start.
"""

import asyncio
import os
import secrets as random
import socket
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import orjson

from ...errors import ConfigError, how_to_install
from ...launch.processes import python_env
from ...secrets import mask
from ...serving.transport.loop import cancel_all
from ...serving.transport.retry import SERVER_RESTART, delay_s
from .places import Crew

MAX_FAILED_STARTS = 5
"""Failed starts of a worker in a row after which it is given up."""

KEPT_LINES = 30
"""Last lines of a worker's output that its actor keeps."""

LINGER_S = 5.0
"""An actor whose worker has ended ends itself after this time, also if its node lost Ray."""

SLOW_S = 15.0
"""After this time without a place for a worker, a line says that it waits."""


class WorkerHost:
    """The actor: it runs one worker on its node, and ends with it."""

    async def node(self) -> str:
        """The name of the node."""
        return socket.gethostname()

    async def work(self, given: dict[str, Any], folder: str) -> str:
        """Run a worker to its end; returns how it ended, with its last lines."""
        if not os.path.isdir(folder):  # noqa: ASYNC240 (at its start)
            return f"found no folder {folder} on its node: share it with all nodes"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rollout_kit.collecting.cluster.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env=python_env(),
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(orjson.dumps(given) + b"\n")
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        async for raw in process.stdout:
            lines.append(raw.decode("utf-8", "replace").rstrip())
        code = await process.wait()
        threading.Timer(LINGER_S, os._exit, [0]).start()
        return "\n    ".join([f"ended with status {code}", *lines])


class RayCluster:
    """The place of `executor=ray`: the cluster at `address`, or one on this machine."""

    def __init__(self, address: str | None, num_cpus: float, number: int | None) -> None:
        self.host = "127.0.0.1"
        self._address, self._num_cpus, self._number = address, num_cpus, number
        self.ray: Any = None
        self._is_mine = True

    async def __aenter__(self) -> Self:
        if not self._address:
            _lock_out_others()  # Ray reads it when it is imported
        self.ray = ray = _import_ray()
        if ray.is_initialized():  # for servers of the same command
            self._is_mine = False
        else:
            self._init(ray)
        self.host = _host_of(ray, self._address)
        return self

    def _init(self, ray: Any) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if self._address:
            options["address"] = self._address
        else:
            cpus = max(os.cpu_count() or 1, int(self._num_cpus * (self._number or 1)) + 1)
            # without an address Ray would join any cluster that it finds on this machine
            options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"at {self._address} " if self._address else ""
            raise ConfigError(
                f"the Ray cluster {where}cannot be used: {describe_refusal(error)}"
            ) from None

    async def __aexit__(self, *exc: object) -> None:
        if self._is_mine:
            await asyncio.to_thread(self.ray.shutdown)

    def num_workers(self) -> int:
        """One for each CPU that workers may have."""
        cpus = self.ray.cluster_resources().get("CPU", 1)
        return max(1, int(cpus / (self._num_cpus or 1)))

    @asynccontextmanager
    async def start(self, crew: Crew) -> AsyncIterator[list["asyncio.Task[str]"]]:
        workers = [
            RayWorker(self.ray, number, self._num_cpus, crew)
            for number in range(1, crew.number + 1)
        ]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            yield tasks
        finally:
            await cancel_all(tasks)


class RayWorker:
    """One worker; when it is lost, another one of the same title is started."""

    def __init__(self, ray: Any, number: int, num_cpus: float, crew: Crew) -> None:
        self._ray, self._crew = ray, crew
        self._title, self._num_cpus = f"worker {number}", num_cpus

    async def run(self) -> str:
        """Keep it alive; returns why it was given up."""
        failed = 0
        while True:
            given = self._crew.invite(self._title)
            why = await self._work(given)
            was_ready = given["worker"] in self._crew.leases.known
            self._crew.leases.lose(given["worker"], why.splitlines()[0])
            failed = 0 if was_ready else failed + 1
            if failed >= MAX_FAILED_STARTS:
                why = mask(why, frozenset(self._crew.secrets))
                return f"{self._title} {why}\n    given up: it cannot be started"
            await asyncio.sleep(delay_s(SERVER_RESTART, failed) if failed else 0.0)

    async def _work(self, given: dict[str, Any]) -> str:
        """Run a worker on some node; returns how it ended."""
        options = {"num_cpus": self._num_cpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor = self._ray.remote(WorkerHost).options(**options).remote()
        waiting = asyncio.get_running_loop().call_later(SLOW_S, self._say_waiting)
        try:
            node = await actor.node.remote()
            waiting.cancel()
            given["title"] = f"{self._title} on {node}"
            return await actor.work.remote(given, os.getcwd())
        except self._ray.exceptions.RayError as error:
            return describe_loss(error)
        finally:
            waiting.cancel()
            with suppress(Exception):  # it is gone already, or Ray is
                self._ray.kill(actor)

    def _say_waiting(self) -> None:
        self._crew.say(
            f"{self._title} waits for a node with {self._num_cpus:g} free CPUs; the others work on"
        )


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]
        import ray.exceptions  # pyright: ignore[reportMissingImports]
        import ray.util  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(f"executor=ray needs Ray: {how_to_install('rollout-kit[ray]')}") from None
    return ray


def _host_of(ray: Any, address: str | None) -> str:
    """The address of this machine for other nodes."""
    return str(ray.util.get_node_ip_address()) if address else "127.0.0.1"


def _lock_out_others() -> None:
    """Have Ray ask for a token: on Linux a local cluster listens on all interfaces."""
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", random.token_hex(32))


def describe_refusal(error: Exception) -> str:
    """Why a cluster cannot be joined, in a line. Ray itself writes about tokens to the standard
    error only."""
    reason = str(error).strip().splitlines()[0]
    if "RAY_AUTH_MODE" in os.environ:
        return reason
    return (
        f"{reason}. If the cluster asks for a token, as those of Ray 2.60 do by default, set"
        " RAY_AUTH_MODE=token here, and copy ~/.ray/auth_token of its head node to this machine"
    )


def describe_loss(error: Exception) -> str:
    """Why Ray lost an actor, in a line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"was lost by Ray: {lines[-1][:300] if lines else type(error).__name__}"
