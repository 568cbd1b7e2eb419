"""Collections and re-verifications as objects that run while a program iterates over them."""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ..collector.collection import (
    Collection,
    CommandLines,
    open_collection,
    open_reverification,
    output_paths,
    survey_stored,
)
from ..collector.results import Status, finish, write_metrics
from ..collector.reverification import verifiers_of
from ..collector.run import Run
from ..collector.sources import TaskSource
from ..config import fields
from ..config.inputs import task_path
from ..config.keys.commands import CollectConfig, ReverifyConfig, RolloutsCommand
from ..config.load import Config
from ..errors import ConfigError
from ..launch.reach import Servers
from ..pacing.bill import Bill
from ..store.files import check_apart
from ..types import JsonObject, Outcome
from .servers import connect, log_event, servers
from .stream import StreamSource

Tasks = str | Path | Iterable[JsonObject] | AsyncIterable[JsonObject]

AnyRollouts = TypeVar("AnyRollouts", bound=RolloutsCommand)

QUEUED = 1000
"""Outcomes that may wait for a synchronous consumer."""


class Running(ABC):
    """A run that makes progress while one iterates over it; iterating again continues it.

    After the last outcome `metrics` holds what the metrics file holds, and `status` how it ended.
    """

    metrics: JsonObject
    status: Status

    @abstractmethod
    async def _open(self) -> Collection[Any, Any]: ...

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._run: Run | None = None

    async def __aiter__(self) -> AsyncGenerator[Outcome, None]:
        """Each outcome once it is on disk. Leaving the loop early cancels what is in flight; the
        next run continues."""
        collection = await self._open()
        is_clean = False
        try:
            await collection.source.count()
            if collection.command.only is None:
                collection.manifest.write()
            run = self._run = Run(
                collection,
                say=log_event,
                ends=self._servers.ends,
                write_metrics=partial(write_metrics, lists_groups=False),
            )
            await run.warm_up()
            outcomes = run.outcomes()
            try:
                async for outcome in outcomes:
                    yield outcome
            finally:
                await outcomes.aclose()
            self.metrics, self.status = finish(run)
            is_clean = True
        finally:
            self._run = None
            collection.journal.close(clean=is_clean)

    def stop(self) -> None:
        """Start nothing more and let what is in flight finish; called again, cancel it."""
        if self._run is not None:
            self._run.interrupt()


class Collecting(Running):
    """What `collect` returns."""

    def __init__(self, servers: Servers, tasks: Tasks, command: CollectConfig) -> None:
        super().__init__(servers)
        self._tasks, self._command = tasks, command

    async def _open(self) -> Collection[Any, Any]:
        command, tasks, name = self._command, self._tasks, "tasks"
        make_source: Callable[..., TaskSource] = TaskSource
        if isinstance(tasks, str | Path):
            given = command.model_copy(update={"input_jsonl_fpath": str(tasks)})
            name = task_path(given, self._servers.values, command.agent_name)
        else:
            make_source = partial(StreamSource, tasks)
        if command.output_jsonl_fpath:
            check_apart(name, output_paths(command))
        return await open_collection(
            Config(command, {}, {}, self._servers.values, {}, frozenset()),
            self._servers,
            Path(name),
            name,
            bill=Bill(),
            lines=CommandLines(),
            say=log_event,
            make_source=make_source,
        )


class Reverifying(Running):
    """What `reverify` returns."""

    def __init__(self, servers: Servers, command: ReverifyConfig) -> None:
        super().__init__(servers)
        self._command = command

    async def _open(self) -> Collection[Any, Any]:
        path = Path(str(self._command.input_jsonl_fpath))
        stored = await survey_stored(str(path), path, self._command)
        found = await verifiers_of(self._servers, stored.survey.agents())
        config = Config(self._command, {}, {}, self._servers.values, {}, frozenset())
        return open_reverification(config, stored, found, lines=CommandLines())


def collect(
    servers: Servers, tasks: Tasks, *, output: str | Path | None = None, **keys: Any
) -> Collecting:
    """Run tasks through an agent and verify each: iterate over the result, or `await` its end.

    `tasks` is a JSONL file, or an iterable of rows, asynchronous or not. Rollouts are appended to
    `output`, where a later call continues; without it they are only yielded. `keys` are those of
    `ng_collect_rollouts`, such as `num_repeats=4`. Raises ConfigError, OutputError or StopRun.
    """
    return Collecting(servers, tasks, _validate(CollectConfig, output, keys))


def reverify(
    servers: Servers, rollouts: str | Path, *, output: str | Path, **keys: Any
) -> Reverifying:
    """Verify stored responses again, without the policy: iterate over the result.

    `rollouts` is a file that a collection wrote; new verdicts are appended to `output`. `keys` are
    those of `ng_reverify`.
    """
    keys = {**keys, "input_jsonl_fpath": str(rollouts)}
    return Reverifying(servers, _validate(ReverifyConfig, output, keys))


def collect_sync(
    where: str | Path, tasks: Tasks, *, output: str | Path | None = None, **keys: Any
) -> Iterator[Outcome]:
    """`collect` for synchronous code: `where` is a YAML file of servers, or the URL of an `ng_run`.

    The run has an event loop in a thread of its own, so this works inside a notebook too.
    """
    command = _validate(CollectConfig, output, keys)
    ready: queue.Queue[Outcome | BaseException | None] = queue.Queue(QUEUED)
    stopped = threading.Event()

    async def run() -> None:
        is_url = str(where).startswith(("http://", "https://"))
        async with connect(str(where)) if is_url else servers(where) as reached:
            async for outcome in Collecting(reached, tasks, command):
                await asyncio.to_thread(ready.put, outcome)
                if stopped.is_set():
                    return

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            ready.put(error)
        else:
            ready.put(None)

    thread = threading.Thread(target=work, name="collect", daemon=True)
    thread.start()
    try:
        while (found := ready.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        stopped.set()
        while thread.is_alive():
            try:
                ready.get(timeout=0.1)
            except queue.Empty:
                thread.join(0.1)


def _validate(
    kind: type[AnyRollouts], output: str | Path | None, keys: dict[str, Any]
) -> AnyRollouts:
    given = {**keys, "output_jsonl_fpath": output} if output is not None else keys
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        lines = [f"{'.'.join(one.path)}: {one.reason}" for one in fields.problems(error, kind)]
        raise ConfigError("\n".join(lines)) from None
