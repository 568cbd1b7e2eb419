"""The server processes of one run: which instance runs in which process, all of them supervised.

The parent binds every socket and keeps it, so no other program can take a port. Callers that
connect while a server is restarted wait in the socket's queue; the sockets of a server that is
given up are closed, so its callers get an error at once.
"""

import asyncio
import os
import secrets as random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import orjson

from ..config.instances import Instance
from ..errors import ConfigError, PeerError
from ..serving.nemo_gym import handover
from ..serving.service import Demands
from ..serving.sockets import url_of
from ..serving.transport.access import accepted_by
from ..serving.transport.http import HttpClient
from ..serving.transport.loop import cancel_all
from ..types import JsonObject
from .holdings import config_for_gym, environment_of, plan_of, sources_of, warn_of_variables
from .output import Output
from .ports import Sockets
from .processes import Child, Reaper, spawn, stop
from .supervise import Supervisor, Terms

STOP_S = 5.0
"""Time between asking a server to stop and killing it with everything that it started."""

WATCH_S = 1.0
"""Interval between looks at the files of the servers' code."""

SHOWN_LINES = 12
"""Last lines of a server's output that an error about it shows."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How server processes are kept.

    `show` receives each line of their output with its label, `tell` each event. Each server has a
    log in a folder of the run below `log_dir`.
    """

    ready_timeout_s: float = 600
    max_restarts: int = 5
    log_dir: Path | None = None
    reload: bool = False
    """Restart a server when a file of its code has changed, rather than only say so."""
    show: Callable[[str, str], None] | None = None
    tell: Callable[[str], None] = lambda line: None


class Fleet:
    """Starts the processes and supervises them; closing `stack` stops them.

    `ends` are the supervising tasks: one is done, with the reason, once its process is given up.
    """

    def __init__(
        self, stack: AsyncExitStack, upkeep: Upkeep, instances: list[Instance], values: JsonObject
    ) -> None:
        self._stack = stack
        self._upkeep = upkeep
        self._config = instances, values
        self._processes: list[ServerProcess] = []
        self.ends: list[asyncio.Task[str]] = []
        self._watch: asyncio.Task[None] | None = None
        self.log_dir: Path | None = None

    async def start(
        self,
        instances: list[Instance],
        sockets: Sockets,
        plan: JsonObject,
        client: HttpClient,
        secrets: Iterable[str],
    ) -> None:
        """Start a process for each worker or label; none is ready yet."""
        if not instances:
            return
        upkeep, run_id = self._upkeep, str(plan["run_id"])
        if upkeep.log_dir:
            self.log_dir = upkeep.log_dir / f"{time.strftime('%F_%H-%M-%S')}_{run_id[:4]}"
        reaper = Reaper()
        await reaper.start()
        self._stack.push_async_callback(reaper.close)
        self._stack.push_async_callback(self._stop)
        run = _Run(plan, client, reaper, upkeep, *self._config, frozenset(secrets))
        for group in _groups(instances):
            output = self._output(group.label, secrets)
            self._stack.callback(output.close)
            own = {each.name: sockets[each.name][group.worker] for each in group.instances}
            process = ServerProcess(group, own, output, run)
            self._processes.append(process)
            try:
                await process.start()
            except OSError as error:
                python = group.instances[0].python or "python"
                raise ConfigError(
                    f"{process.title} cannot be started by {python}: {error.strerror}"
                ) from None

    def _output(self, label: str, secrets: Iterable[str]) -> Output:
        path = self.log_dir / f"{label}.log" if self.log_dir else None
        show, tell = self._upkeep.show, self._upkeep.tell
        return Output(label, path=path, secrets=secrets, show=show, tell=tell)

    def readiness(self) -> list[Coroutine[None, None, None]]:
        """Coroutines that wait until each process is ready; ConfigError if one cannot start."""
        return [process.wait_ready() for process in self._processes]

    def keep(self) -> None:
        """Restart processes that die from now on, and notice changes of their code."""
        self.ends = [asyncio.create_task(process.keep()) for process in self._processes]
        self._watch = asyncio.create_task(self._watch_code()) if self._processes else None

    def tell_moved(self, name: str, urls: list[str]) -> None:
        """Tell every process that a server answers at other URLs now."""
        line = orjson.dumps({"server": name, "urls": urls}) + b"\n"
        for process in self._processes:
            if process.child and process.child.process.stdin:
                process.child.process.stdin.write(line)

    def of(self, instance: Instance) -> list[Supervisor]:
        """The processes that serve an instance."""
        return [process for process in self._processes if instance in process.group.instances]

    async def _watch_code(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for process in self._processes:
                process.notice_change(reload=self._upkeep.reload)

    async def _stop(self) -> None:
        await cancel_all([*self.ends, *([self._watch] if self._watch else [])])
        await stop([process.child for process in self._processes if process.child], STOP_S)
        for process in self._processes:
            process.forget()


@dataclass(frozen=True, slots=True)
class _Run:
    """What all server processes of a run share."""

    plan: JsonObject
    client: HttpClient
    reaper: Reaper
    upkeep: Upkeep
    instances: list[Instance]
    values: JsonObject
    secrets: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """What one process serves: the instances that share a label, or one worker of one instance."""

    label: str
    instances: list[Instance]
    worker: int = 0


class ServerProcess(Supervisor):
    """One process that serves a group of instances on its sockets."""

    def __init__(
        self, group: _Group, sockets: dict[str, socket], output: Output, run: _Run
    ) -> None:
        asked = [demands_of(each).ready_timeout_s for each in group.instances]
        terms = Terms(max(run.upkeep.ready_timeout_s, *asked), run.upkeep.max_restarts)
        super().__init__(f"server '{group.label}'", terms, run.reaper)
        self.group = group
        self._sockets, self._output, self._run = sockets, output, run
        self._answering: set[str] = set()
        self._code: dict[Path, tuple[int, int]] = {}

    async def spawn(self) -> Child:
        """Start it. The plan, with its secrets, goes through a pipe: other users can read
        arguments and environments."""
        self._output.renew()
        self._answering.clear()
        self._code = _stat_code(self.group.instances)
        instances, run, mark = self.group.instances, self._run, random.token_hex(8)
        first = instances[0]
        descriptors = {name: sock.fileno() for name, sock in self._sockets.items()}
        if first.code:
            [descriptor] = descriptors.values()
            config = config_for_gym(first, run.instances, run.values, run.secrets, run.plan["urls"])
            run_id = run.plan["run_id"]
            plan = handover.plan_for(first.name, first.code, config, run_id, descriptor)
            program = [str(handover.SCRIPT)]
        else:
            token = run.plan["token"]
            accepted = {each.name: accepted_by(each.name, token) for each in instances}
            plan = {**plan_of(run.plan, instances), "sockets": descriptors, "accepted": accepted}
            plan["is_restarted"] = self.restarts > 0
            program = ["-m", "rollout_kit.launch.serve"]
        if not self.restarts:
            for line in warn_of_variables(instances):
                self.tell(line)
        return await spawn(
            [first.python or sys.executable, *program],
            environment_of(instances, mark),
            take=self._output.take,
            mark=mark,
            line=orjson.dumps(plan) + b"\n",
            pass_fds=list(descriptors.values()),
        )

    async def is_ready(self) -> bool:
        """Whether every instance has answered with this run's id."""
        for name, sock in self._sockets.items():
            if name not in self._answering and not await self._answers(url_of(sock)):
                return False
            self._answering.add(name)
        return True

    async def _answers(self, url: str) -> bool:
        try:
            reply = await self._run.client.get(f"{url}/health", timeout_s=5)
            run_id = orjson.loads(reply.raw).get("run_id")
            return reply.status == 200 and run_id == self._run.plan["run_id"]
        except (PeerError, orjson.JSONDecodeError):
            return False

    @property
    def has_begun(self) -> bool:
        return self._output.has_begun

    def notice_change(self, *, reload: bool) -> None:
        """Restart the process if a file of its code has changed, or say so once."""
        now = _stat_code(self.group.instances)
        changed = sorted(
            path for path in {*now, *self._code} if now.get(path) != self._code.get(path)
        )
        if not changed or self.child is None or self.state != "ready":
            return
        self._code = now
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in changed)
        if not reload:
            self.tell(
                f"warning: {names} changed: {self.title} goes on with the code that it has loaded;"
                " ng_run +reload=true restarts a server when its code changes"
            )
        elif problem := _find_problem(path for path in changed if path in now):
            self.tell(f"warning: {self.title} is not restarted, because {problem}")
        else:
            self.tell(f"{names} changed: restarting {self.title}")
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGTERM)

    def tell(self, line: str) -> None:
        """Show a line to people, and write it to the server's own log."""
        line = f"{time.strftime('%F %T')} {line}"
        self._output.note(line)
        self._run.upkeep.tell(line)

    def last_words(self) -> list[str]:
        path = self._output.path
        log = [f"(its log: {path})"] if path else []
        return [*list(self._output.tail)[-SHOWN_LINES:], *log]

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


def _stat_code(instances: Iterable[Instance]) -> dict[Path, tuple[int, int]]:
    """Time and size of each file of the servers' code."""
    found = {}
    for each in instances:
        for path in sources_of(each):
            with suppress(OSError):
                status = path.stat()
                found[path] = status.st_mtime_ns, status.st_size
    return found


def _find_problem(paths: Iterable[Path]) -> str:
    """What keeps Python from reading one of the files."""
    for path in paths:
        try:
            compile(path.read_bytes(), path, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            return f"{path.name} cannot be loaded: {error}"
    return ""


def demands_of(instance: Instance) -> Demands:
    """What the implementation demands; nothing if only another interpreter can import it."""
    try:
        return instance.load().demands(instance.settings)
    except ConfigError:
        return Demands()


def _groups(spawned: Iterable[Instance]) -> list[_Group]:
    shared: dict[str, list[Instance]] = {}
    groups: list[_Group] = []
    for each in spawned:
        if each.process:
            shared.setdefault(each.process, []).append(each)
        elif each.num_workers == 1:
            groups.append(_Group(each.name, [each]))
        else:
            workers = range(each.num_workers)
            groups += [_Group(f"{each.name}-{worker}", [each], worker) for worker in workers]
    return groups + [_Group(label, instances) for label, instances in shared.items()]
