"""Collections and re-verifications as objects that run while a program iterates over them."""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ..collecting.pacing.bill import Bill
from ..collecting.plan import (
    Collection,
    CommandLines,
    check_repeats,
    open_collection,
    open_reverification,
    output_paths,
    survey_stored,
)
from ..collecting.results import Status, finish, write_metrics
from ..collecting.reverification import verifiers_of
from ..collecting.run import Run
from ..collecting.sources import TaskSource
from ..config import fields
from ..config.inputs import task_path
from ..config.keys import (
    ClusterConfig,
    CollectConfig,
    HttpClientConfig,
    ProducingConfig,
    ReverifyConfig,
    RolloutsCommand,
    ServersConfig,
    TrackersConfig,
)
from ..config.load import Config
from ..errors import ConfigError
from ..launch.reach import Servers
from ..store.files import check_apart
from ..types import JsonObject, Outcome
from .servers import connect, log_event, servers
from .stream import StreamSource

Tasks = str | Path | Iterable[JsonObject] | AsyncIterable[JsonObject]

AnyRollouts = TypeVar("AnyRollouts", bound=RolloutsCommand)

QUEUED = 1000
"""Outcomes that may wait for a synchronous consumer."""


class Running(ABC):
    """A run that makes progress while one iterates over it, once.

    After the last outcome `metrics` holds what the metrics file holds, and `status` how it ended.
    """

    def __init__(self, servers: Servers) -> None:
        if not isinstance(servers, Servers):
            raise ConfigError(
                "servers: expected what  async with servers('….yaml') as servers  or connect('http"
                f"://…') gives, got {type(servers).__name__}; collect_sync takes the name of a YAML"
            )
        self.metrics: JsonObject | None = None
        self.status: Status | None = None
        self._servers = servers
        self._run: Run | None = None
        self._has_begun = self._is_stopped = False

    @abstractmethod
    async def _open(self) -> Collection[Any, Any]: ...

    def stop(self) -> None:
        """Start nothing more and let what is in flight finish; called again, cancel it."""
        self._is_stopped = True
        if self._run is not None:
            self._run.interrupt()

    async def __aiter__(self) -> AsyncGenerator[Outcome, None]:
        """Each outcome once it is on disk. To continue after leaving the loop early, start another
        run into the same output."""
        if self._has_begun:
            raise ConfigError("a run can be iterated over once: start another one to continue")
        if self._servers.ended.is_set():
            raise ConfigError("the servers have stopped: iterate inside their `async with` block")
        self._has_begun = True
        await self._wait_for_closing()
        closed = asyncio.Event()
        try:
            await self._check_code()
            with await self._open() as collection:
                await collection.source.count()
                collection.begin()
                run = self._run = self._make_run(collection)
                await run.warm_up()
                if self._is_stopped:
                    run.interrupt()
                outcomes = run.outcomes()
                async with self._beside(run):
                    try:
                        async for outcome in outcomes:
                            yield outcome
                    finally:
                        self._servers.closing.add(closed)
                        await outcomes.aclose()
                self.metrics, self.status = finish(run)
        finally:
            self._run = None
            self._servers.closing.discard(closed)
            closed.set()

    async def _check_code(self) -> None:
        """ConfigError if the files of a running verifier have changed: its verdicts would be those
        of the code that it began with."""
        servers, peers = self._servers, self._servers.peers
        peers.forget_descriptions()
        for agent in servers.agents:
            resources = (await peers.describe(agent)).get("resources_server")
            about = await peers.describe(resources) if resources else {}
            if changed := about.get("changed_files"):
                raise ConfigError(
                    f"{', '.join(changed)} of '{resources}' changed after it was started, and its"
                    " verdicts would be those of the code before: start the servers again"
                )

    def _make_run(self, collection: Collection[Any, Any]) -> Run:
        return Run(
            collection,
            say=log_event,
            ends=self._servers.ends,
            write_metrics=partial(write_metrics, lists_groups=False),
        )

    def _beside(self, run: Run) -> AbstractAsyncContextManager[object]:
        """A context around the outcomes of the run."""
        return nullcontext()

    async def _wait_for_closing(self) -> None:
        """Until runs that were left early have released their output."""
        for _ in range(3):  # the event loop begins to close a generator that was left
            await asyncio.sleep(0)
        for closed in list(self._servers.closing):
            await closed.wait()


class Collecting(Running):
    """What `collect` returns."""

    def __init__(self, servers: Servers, tasks: Tasks, command: CollectConfig) -> None:
        super().__init__(servers)
        self._tasks, self._command = tasks, command

    async def _open(self) -> Collection[Any, Any]:
        command, tasks, name = self._command, self._tasks, "tasks"
        if isinstance(tasks, str | Path):
            given = command.model_copy(update={"input_jsonl_fpath": str(tasks)})
            name = task_path(given, self._servers.values, command.agent_name)
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
            make_source=self._source(),
        )

    def _source(self) -> Callable[..., TaskSource]:
        if isinstance(self._tasks, str | Path):
            return TaskSource
        return partial(StreamSource, self._tasks)


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
    """Run tasks through an agent and verify each: iterate over the result.

    `tasks` is a JSONL file, or an iterable of rows, asynchronous or not. Rollouts are appended to
    `output`, where a later call continues; without it they are only yielded. `keys` are those of
    `ng_collect_rollouts` that concern one run, such as `num_repeats=4`. Raises ConfigError here,
    and ConfigError, OutputError or StopRun during the iteration.
    """
    return Collecting(servers, tasks, _collect_config(tasks, output, keys))


def reverify(
    servers: Servers, rollouts: str | Path, *, output: str | Path, **keys: Any
) -> Reverifying:
    """Verify stored responses again, without the policy: iterate over the result.

    `rollouts` is a file that a collection wrote; new verdicts are appended to `output`. `keys` are
    those of `ng_reverify` that concern one run.
    """
    if not isinstance(rollouts, str | Path) or not output:
        raise ConfigError("reverify: name the file of rollouts, and another one as output")
    command = read_keys(ReverifyConfig, output, keys)
    return Reverifying(servers, command.model_copy(update={"input_jsonl_fpath": str(rollouts)}))


class CollectingSync:
    """What `collect_sync` returns: a run with an event loop in a thread of its own."""

    def __init__(self, where: str | Path, tasks: Tasks, command: CollectConfig) -> None:
        self.metrics: JsonObject | None = None
        self.status: Status | None = None
        self._where, self._tasks, self._command = where, tasks, command
        self._ready: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Event()
        self._has_begun = False

    def __iter__(self) -> Iterator[Outcome]:
        """Each outcome once it is on disk. Leaving the loop cancels what is in flight."""
        if self._has_begun:
            raise ConfigError("a run can be iterated over once: start another one to continue")
        self._has_begun = True
        loop = asyncio.new_event_loop()
        task = loop.create_task(self._collect())
        thread = threading.Thread(target=self._work, args=(loop, task), name="collect", daemon=True)
        thread.start()
        try:
            while (found := self._ready.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
                if self._ready.qsize() < QUEUED:
                    with suppress(RuntimeError):  # the loop has ended already
                        loop.call_soon_threadsafe(self._room.set)
        finally:
            with suppress(RuntimeError):  # the loop has ended already
                loop.call_soon_threadsafe(task.cancel)
            thread.join()

    async def _collect(self) -> None:
        is_url = str(self._where).startswith("http://")
        where = connect(str(self._where)) if is_url else servers(self._where)
        async with where as reached:
            run = Collecting(reached, self._tasks, self._command)
            async with aclosing(run.__aiter__()) as outcomes:
                async for outcome in outcomes:
                    self._ready.put(outcome)
                    if self._ready.qsize() >= QUEUED:
                        self._room.clear()
                        await self._room.wait()
            self.metrics, self.status = run.metrics, run.status

    def _work(self, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
        found: BaseException | None = None
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass  # the consumer has left
        except BaseException as error:
            found = error
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            self._ready.put(found)


def collect_sync(
    where: str | Path, tasks: Tasks, *, output: str | Path | None = None, **keys: Any
) -> CollectingSync:
    """`collect` for synchronous code: `where` is a YAML file of servers, or the URL of an `ng_run`.

    It works inside a running event loop too, for example in a notebook.
    """
    return CollectingSync(where, tasks, _collect_config(tasks, output, keys))


OF_SERVERS = frozenset(
    {*HttpClientConfig.model_fields, *ServersConfig.model_fields, *ClusterConfig.model_fields}
) - {"shard"}
"""Keys that concern servers, and so have no effect on one run."""

# fmt: off
OF_COMMANDS = frozenset({
    "config_paths", "json", "json_output", "dry_run", "confirm", "num_canary",
    "canary_seed", "throughput_log", "dataset", "input_jsonl_fpath", "output_jsonl_fpath",
    "head_server", "request_timeout_s", "dashboard", "dashboard_port",
    *TrackersConfig.model_fields,
})
# fmt: on
"""Keys of the commands that are arguments here, or concern only people at a terminal."""


def _collect_config(tasks: Tasks, output: str | Path | None, keys: dict[str, Any]) -> CollectConfig:
    if isinstance(tasks, bytes | dict) or not isinstance(tasks, Path | Iterable | AsyncIterable):
        kind = type(tasks).__name__
        raise ConfigError(f"tasks: expected a JSONL file or an iterable of rows, got {kind}")
    command = read_keys(CollectConfig, output, keys)
    check_repeats(command)
    return command


def read_keys(
    kind: type[AnyRollouts], output: str | Path | None, keys: dict[str, Any], **own: Any
) -> AnyRollouts:
    """The arguments of a run as the keys of its command; ConfigError for one that is wrong. `own`
    are those that its function names."""
    for name in keys:
        if name in OF_SERVERS:
            raise ConfigError(
                f"{name}: it concerns servers: give it to servers(…, overrides=['+{name}=…'])"
            )
        if name in ProducingConfig.model_fields:
            raise ConfigError(f"{name}: it is for a trainer: give it to rollout_kit.rl.collect")
        if name in OF_COMMANDS:
            raise ConfigError(f"{name}: has no effect here; leave it out")
    if output is not None and not str(output):
        raise ConfigError("output: expected a path, got an empty text")
    given = keys | own | ({} if output is None else {"output_jsonl_fpath": output})
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        lines = [f"{'.'.join(one.path)}: {one.reason}" for one in fields.problems(error, kind)]
        raise ConfigError("\n".join(lines)) from None
