"""Workers as processes on this machine."""

import asyncio
import os
import secrets as random
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Self

import orjson

from ...errors import ConfigError
from ...launch.output import Output
from ...launch.processes import Child, Reaper, python_env, spawn, stop
from ...launch.supervise import Supervisor, Terms
from ...serving.process_tree import MARK
from ...serving.transport.loop import cancel_all, gather_all
from .places import Crew

STOP_S = 3.0
"""Time between asking a worker to stop and killing it."""

SHOWN_LINES = 12
"""Last lines of a worker's output that an error about it shows."""


class WorkerProcess(Supervisor):
    """One worker; a process that dies is started again as another worker of the same title."""

    def __init__(self, number: int, crew: Crew, output: Output, reaper: Reaper) -> None:
        super().__init__(f"worker {number}", Terms(), reaper)
        self.id = ""
        self._crew, self._output = crew, output

    async def spawn(self) -> Child:
        given, mark = self._crew.invite(self.title), random.token_hex(8)
        self.id = given["worker"]
        self._output.tail.clear()
        return await spawn(
            [sys.executable, "-m", "rollout_kit.collecting.cluster.worker"],
            python_env(**{MARK: mark}),
            take=self._output.take,
            mark=mark,
            line=orjson.dumps(given) + b"\n",
        )

    async def is_ready(self) -> bool:
        return self.id in self._crew.leases.members

    async def run(self) -> str:
        """Keep it alive; returns why it was given up."""
        try:
            await self.wait_ready()
        except ConfigError as error:
            return f"{error}\n    given up: a worker that cannot start"
        return await self.keep(self._lose)

    def _lose(self) -> None:
        assert self.child is not None
        self._crew.leases.lose(self.id, self.child.ending)

    def tell_end(self) -> None:
        """The leases tell it, with what it held."""

    def tell(self, line: str) -> None:
        self._output.note(line)

    def last_words(self) -> list[str]:
        return list(self._output.tail)[-SHOWN_LINES:]


class ThisMachine:
    """The place of `executor=processes`."""

    host = "127.0.0.1"

    def num_workers(self) -> int:
        return len(os.sched_getaffinity(0))

    @asynccontextmanager
    async def start(self, crew: Crew) -> AsyncIterator[list["asyncio.Task[str]"]]:
        reaper, tasks = Reaper(), list[asyncio.Task[str]]()
        with ExitStack() as stack:
            workers = [
                WorkerProcess(number, crew, _output(number, crew, stack), reaper)
                for number in range(1, crew.number + 1)
            ]
            await reaper.start()
            try:
                await gather_all(worker.start() for worker in workers)
                tasks += [asyncio.create_task(worker.run()) for worker in workers]
                yield tasks
            finally:
                await cancel_all(tasks)
                await stop([worker.child for worker in workers if worker.child], STOP_S)
                await reaper.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return


def _output(number: int, crew: Crew, stack: ExitStack) -> Output:
    label = f"worker-{number}"
    path = crew.log_dir / f"{label}.log" if crew.log_dir else None
    output = Output(label, path=path, secrets=crew.secrets)
    stack.callback(output.close)
    return output
