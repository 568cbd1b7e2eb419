"""Workers as processes on this machine."""

import asyncio
import os
import secrets as random
import sys
from collections.abc import Collection
from contextlib import ExitStack

import orjson

from ..config.keys.commands import CollectConfig
from ..errors import ConfigError
from ..launch.output import Output
from ..launch.process_tree import MARK
from ..launch.processes import Child, Reaper, python_path, spawn, stop
from ..launch.supervise import Supervisor, Terms
from ..transport.loop import gather_all
from ..types import Say
from .leases import Leases

STOP_S = 3.0
"""Time between asking a worker to stop and killing it."""

SHOWN_LINES = 12
"""Last lines of a worker's output that an error about it shows."""


class WorkerProcess(Supervisor):
    """One worker; a process that dies is started again as another worker of the same title."""

    def __init__(
        self, number: int, url: str, token: str, leases: Leases, output: Output, reaper: Reaper
    ) -> None:
        super().__init__(f"worker {number}", Terms(), reaper)
        self.id = ""
        self._url, self._token, self._leases, self._output = url, token, leases, output

    async def spawn(self) -> Child:
        self.id, mark = random.token_hex(8), random.token_hex(8)
        self._output.tail.clear()
        given = {"url": self._url, "token": self._token, "worker": self.id, "title": self.title}
        return await spawn(
            [sys.executable, "-m", "rollout_kit.cluster.worker"],
            {
                **os.environ,
                "PYTHONPATH": python_path(),
                "PYTHONUNBUFFERED": "1",
                MARK: mark,
            },
            take=self._output.take,
            mark=mark,
            line=orjson.dumps(given) + b"\n",
        )

    async def is_ready(self) -> bool:
        return self.id in self._leases.members

    async def run(self) -> str:
        """Keep it alive; returns why it was given up."""
        try:
            await self.wait_ready()
        except ConfigError as error:
            return f"{error}\n    given up: a worker that cannot start"
        return await self.keep(self._lose)

    def _lose(self) -> None:
        assert self.child is not None
        self._leases.lose(self.id, self.child.ending)

    def tell_end(self) -> None:
        """The leases tell it, with what it held."""

    def tell(self, line: str) -> None:
        self._output.note(line)

    def last_words(self) -> list[str]:
        return list(self._output.tail)[-SHOWN_LINES:]


class WorkerProcesses:
    """Context with `number` workers; its value are the tasks that end, with the reason, when a
    worker is given up."""

    def __init__(
        self,
        number: int,
        url: str,
        token: str,
        leases: Leases,
        secrets: Collection[str],
        command: CollectConfig,
        say: Say,
    ) -> None:
        self._secrets = {*secrets, token}
        self._log_dir, self._say = command.log_dir, say
        self._reaper, self._stack = Reaper(), ExitStack()
        self._tasks: list[asyncio.Task[str]] = []
        self._workers = [
            WorkerProcess(each, url, token, leases, self._output(each), self._reaper)
            for each in range(1, number + 1)
        ]

    async def __aenter__(self) -> list["asyncio.Task[str]"]:
        await self._reaper.start()
        await gather_all(worker.start() for worker in self._workers)
        self._tasks = [asyncio.create_task(worker.run()) for worker in self._workers]
        return self._tasks

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await stop([worker.child for worker in self._workers if worker.child], STOP_S)
        await self._reaper.close()
        self._stack.close()

    def _output(self, number: int) -> Output:
        label = f"worker-{number}"
        path = self._log_dir / f"{label}.log" if self._log_dir else None
        output = Output(label, path=path, secrets=self._secrets)
        self._stack.callback(output.close)
        return output
