"""Collections and re-verifications as objects that run while a program iterates over them."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack, cast
from weakref import WeakKeyDictionary

from ..collecting.cheapest.savings import recall_costs
from ..collecting.cheapest.words import count_ways, describe_limit, describe_ways
from ..collecting.data.benchmarks.prepared import prepare_rows
from ..collecting.live.snapshot import Snapshot
from ..collecting.live.watcher import Reader, Watcher
from ..collecting.pacing.bill import Bill
from ..collecting.pacing.budget import Budget
from ..collecting.pacing.limiter import Limiter
from ..collecting.parts import Parts
from ..collecting.plan import (
    Collection,
    CommandLines,
    open_collection,
    open_reverification,
    output_paths,
    survey_stored,
)
from ..collecting.results import Status, finish, write_interim
from ..collecting.reverification import verifiers_of
from ..collecting.run import Run
from ..collecting.sources import TaskSource
from ..collecting.steps import RolloutLimits
from ..config.benchmarks.harbor import find_own
from ..config.inputs import HUB, task_path
from ..config.keys import CollectConfig, Parallelism, ReverifyConfig
from ..config.load import Config
from ..errors import ConfigError, number_of
from ..launch.reach import Servers
from ..serving.transport.retry import RetryPolicy
from ..store.files import check_apart
from ..store.rollouts import Rollouts
from ..types import Failure, JsonObject, Key, Outcome, OutcomeSink, Rollout, Unverified
from .arguments import read_benchmark, read_collect, read_parts, read_reach, read_reverify
from .given import Environment, Given, Modelled, Verified
from .keys import CollectKeys, ReverifyKeys
from .notebook import NotebookBar, build_table, find_display
from .reached import Reach, Where
from .servers import log_event
from .stream import RowSource, StreamSource

Tasks = str | Path | Iterable[JsonObject] | AsyncIterable[JsonObject] | RowSource
"""A JSONL file, or rows."""


log = logging.getLogger("rollout_kit")


class Collected(Rollouts):
    """What awaiting a run gives: a table of its rollouts.

    Iterate over it, take its `len`, or call `to_pandas()`. With an output it reads that file, one
    line at a time, so it has the rollouts of earlier runs too; without one it holds this run's.
    `metrics` is what the metrics file holds, and `status` is 0 if every rollout succeeded.
    `failures` are the rollouts of this run that have no result, `unverified` the responses of this
    run that have no verdict.

    Example:

        table = await rk.collect(rows, model=lambda params: "4", verify=lambda task, response: 1.0)
        print(len(table), table.metrics["metrics"], [each.reward for each in table])
    """

    metrics: JsonObject
    status: Status

    def __init__(self, output: Path | None) -> None:
        super().__init__(*([output] if output else []))
        self.failures: list[Failure] = []
        self._own: list[Rollout] = []
        self._unverified: dict[Key, Unverified] = {}

    @property
    def unverified(self) -> list[Unverified]:
        """Responses of this run without a verdict."""
        return list(self._unverified.values())

    def take(self, outcome: Outcome) -> None:
        """Add an outcome of the run."""
        self._unverified.pop(outcome.key, None)
        if isinstance(outcome, Unverified):
            self._unverified[outcome.key] = outcome
        elif isinstance(outcome, Failure):
            self.failures.append(outcome)
        elif isinstance(outcome, Rollout) and not self.paths:
            self._own.append(outcome)

    def end(self, metrics: JsonObject | None, status: Status | None) -> Self:
        """The table of a run that has ended so."""
        assert metrics is not None and status is not None, "the run has ended"
        self.metrics, self.status = metrics, status
        # a run without rollouts makes no file
        self.paths = [path for path in self.paths if path.exists()]
        if said := "; ".join(self._missing()):
            log.warning("%s: see `failures` and `unverified` of the table", said)
        return self

    def _missing(self) -> Iterator[str]:
        """What has no reward in this run, with the last reason."""
        for what, errors in (
            ("failed", [each.error for each in self.failures]),
            ("without a verdict", [each.error for each in self._unverified.values()]),
        ):
            told = [error.message for error in errors if error is not None]
            why = f", the last one with: {told[-1]}" if told else ""
            if errors:
                yield f"{len(errors):,} {what}{why}"

    def _repr_html_(self) -> str:
        return build_table(self, self.failures, self.metrics, len(self))

    def __repr__(self) -> str:
        return f"Collected({'; '.join([number_of(len(self), 'rollout'), *self._missing()])})"

    def __iter__(self) -> Iterator[Rollout]:
        return super().__iter__() if self.paths else iter(self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


Progress = bool | Callable[[Snapshot], object] | None
"""Whether a bar is shown in a notebook, or what gets a `Snapshot` each second; None: a bar wherever
there is a notebook."""


def _readers_of(progress: Progress) -> list[Reader]:
    if callable(progress):
        return [progress]
    display = None if progress is False else find_display()
    if progress is True and display is None:
        raise ConfigError(
            "progress=True shows a bar in a notebook, and this is none: leave it out, or give a"
            " function of the snapshots of the run"
        )
    return [NotebookBar(display).read] if display else []


@contextmanager
def _watch(run: Run, readers: Sequence[Reader]) -> Iterator[None]:
    """Have readers get a snapshot of the run each second, and one at its end."""
    if not readers:
        yield
        return
    watcher = Watcher(run)
    watcher.readers += readers
    watcher.begin()
    try:
        yield
    finally:
        watcher.end()


CLOSING: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Event]] = WeakKeyDictionary()
"""Runs of each event loop that were left early and are still closing their output. Only the loop
knows that a generator was left, so no object of a program could have them."""


def _closing() -> set[asyncio.Event]:
    return CLOSING.setdefault(asyncio.get_running_loop(), set())


async def _wait_for_closing() -> None:
    """Until runs that were left early have released their output."""
    for _ in range(3):  # the event loop begins to close a generator that was left
        await asyncio.sleep(0)
    for closed in list(_closing()):
        await closed.wait()


class Running(ABC):
    """A run that makes progress while one iterates over it, or awaits it, once.

    After the last outcome `metrics` holds what the metrics file holds, and `status` how it ended.
    """

    def __init__(self, reach: Reach, output: Path | None, progress: Progress = None) -> None:
        reach.check()
        self._readers = _readers_of(progress)
        self.metrics: JsonObject | None = None
        self.status: Status | None = None
        self.output = output
        self._reach = reach
        self._servers: Servers
        self._run: Run | None = None
        self._has_begun = self._is_stopped = False

    @abstractmethod
    async def _open(self) -> Collection: ...

    def stop(self) -> None:
        """Start nothing more and let what is in flight finish; called again, cancel it."""
        self._is_stopped = True
        if self._run is not None:
            self._run.end.interrupt()

    def __await__(self) -> Generator[Any, None, Collected]:
        return self.table().__await__()

    async def table(self) -> Collected:
        """Run to the end; what `await` of the run gives. Raises what the iteration raises."""
        table = Collected(self.output)
        async with aclosing(self.__aiter__()) as outcomes:
            async for outcome in outcomes:
                table.take(outcome)
        return table.end(self.metrics, self.status)

    async def __aiter__(self) -> AsyncGenerator[Outcome, None]:
        """Each outcome once it is on disk. To continue after leaving the loop early, start another
        run into the same output."""
        if self._has_begun:
            raise ConfigError("a run can be iterated over once: start another one to continue")
        self._has_begun = True
        await _wait_for_closing()
        async with (
            self._reach.opened() as self._servers,
            aclosing(self._outcomes()) as outcomes,
        ):
            async for outcome in outcomes:
                yield outcome

    async def _outcomes(self) -> AsyncGenerator[Outcome, None]:
        closed, closing = asyncio.Event(), _closing()
        try:
            await self._check_code()
            with await self._open() as collection:
                await collection.source.count()
                await self._say_ways(collection)
                collection.begin()
                run = self._run = self._make_run(collection)
                await run.warm_up()
                if self._is_stopped:
                    run.end.interrupt()
                outcomes = run.outcomes()
                async with self._beside(run):
                    with _watch(run, self._readers):
                        try:
                            async for outcome in outcomes:
                                yield outcome
                        finally:
                            closing.add(closed)
                            await outcomes.aclose()
                self.metrics, self.status, _ = finish(run)
        finally:
            self._run = None
            closing.discard(closed)
            closed.set()

    async def _say_ways(self, collection: Collection) -> None:
        """Log how the requests of the run are sent, if it chooses."""
        return

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

    def _make_run(self, collection: Collection) -> Run:
        return Run(
            collection,
            say=log_event,
            ends=self._servers.ends,
            write_metrics=write_interim,
        )

    def _beside(self, run: Run) -> AbstractAsyncContextManager[object]:
        """A context around the outcomes of the run."""
        return nullcontext()


class Collecting(Running):
    """What `collect` returns."""

    def __init__(
        self,
        reach: Reach,
        tasks: Tasks | None,
        command: CollectConfig,
        parts: Parts = Parts(),
        progress: Progress = None,
    ) -> None:
        super().__init__(reach, command.output_jsonl_fpath, progress)
        self._tasks, self._command, self._parts = tasks, command, parts

    async def _open(self) -> Collection:
        command, tasks, name = self._command, self._tasks, "tasks"
        if (own := find_own(command)) is not None:
            await asyncio.to_thread(prepare_rows, own, log_event)
        if tasks is None or isinstance(tasks, str | Path):
            named = {} if tasks is None else {"input_jsonl_fpath": str(tasks)}
            given = command.model_copy(update=named)
            name = task_path(given, self._servers.values, command.agent_name)
            if name.startswith(HUB):
                raise ConfigError(f"tasks: {name}: give the rows of datasets.load_dataset(…)")
            if command.output_jsonl_fpath:
                check_apart(name, output_paths(command))
        if self._parts.retry and self._servers.make_runner:
            raise ConfigError("retry: workers have a policy of their own: leave it out")
        return await open_collection(
            Config(command, {}, {}, self._servers.values, {}, frozenset()),
            self._servers,
            Path(name),
            name,
            bill=Bill(),
            lines=CommandLines(),
            say=log_event,
            make_source=self._source(),
            parts=self._parts,
        )

    async def _say_ways(self, collection: Collection) -> None:
        ways, source, command = collection.runner.ways, collection.source, self._command
        if not ways.is_on:
            return
        counts = None
        if isinstance(source, TaskSource) and not isinstance(source, StreamSource):
            counts = await count_ways(source, ways)
        if collection.parts.budget is None:
            known = recall_costs(collection.paths) if collection.paths else Bill()
            limits = command.max_cost_usd, command.max_total_tokens
            budget = Budget(*limits, known=known, is_careful=True)
            collection.parts = replace(collection.parts, budget=budget)
        for line in describe_ways(ways, counts, command):
            log_event(line)
        log_event("  canary: none, as a program collects at once")
        log_event(describe_limit(command))

    def _source(self) -> Callable[..., TaskSource]:
        if self._tasks is None or isinstance(self._tasks, str | Path):
            return TaskSource
        return partial(StreamSource, self._tasks)


class Reverifying(Running):
    """What `reverify` returns."""

    def __init__(self, reach: Reach, command: ReverifyConfig, progress: Progress = None) -> None:
        super().__init__(reach, command.output_jsonl_fpath, progress)
        self._command = command

    async def _open(self) -> Collection:
        path = Path(str(self._command.input_jsonl_fpath))
        stored = await survey_stored(str(path), path, self._command)
        found = await verifiers_of(self._servers, stored.survey.agents())
        config = Config(self._command, {}, {}, self._servers.values, {}, frozenset())
        return open_reverification(config, stored, found, lines=CommandLines())


def collect(
    tasks: Tasks | Where | None = None,
    rows: Tasks | None = None,
    *,
    servers: Where | None = None,
    model: Modelled | None = None,
    verify: Verified | None = None,
    environment: Environment | None = None,
    output: str | Path | None = None,
    parallelism: int | str | Parallelism | Limiter | None = None,
    limits: Budget | RolloutLimits | None = None,
    retry: int | RetryPolicy | None = None,
    sink: OutcomeSink | None = None,
    progress: Progress = None,
    **keys: Unpack[CollectKeys],
) -> Collecting:
    """Run tasks through an agent and verify each: iterate over the result, or await it.

    Iterating gives each `Rollout`, `Failure` and `Unverified` once it is on disk. Awaiting runs to
    the end and gives a table, `Collected`.

    - `tasks` is a JSONL file, an iterable of rows, asynchronous or not, or a `RowSource`.
    - `servers` are those of `servers(…)` or `connect(…)`, one or several YAML files, or the URL of
      an `ng_run`. Without them the run starts its own from `model` and `environment` or `verify`,
      which are those of `servers`. With running servers, `model` is the name of a model server.
    - `output` is the file to append to, where a later call continues. None: nothing is written.
    - `parallelism` is the rollouts in flight: a number, `"auto"`, `"min-start-max"`, a `Limiter`.
    - `limits` is a `Budget` in US dollars and tokens, which several runs may share, or
      `RolloutLimits` in seconds and attempts for each rollout.
    - `retry` is the number of attempts at a rollout, or a `RetryPolicy` with pauses in seconds.
    - `sink` gets all outcomes that ended together, by `append_all(outcomes)`, before all others.
    - `progress` is False for no bar in a notebook, or gets the run's `Snapshot` each second.
    - `keys` are those of `ng_collect_rollouts`, such as `num_repeats=4` or `max_minutes=30`.

    `collect(servers, tasks)` is accepted too. Raises ConfigError here, and ConfigError, OutputError
    or StopRun during the iteration.

    Example:

        async for outcome in rk.collect(
            rows,
            model=lambda params: "4",
            verify=lambda task, response: float("4" in str(response["output"])),
            output="collected.jsonl",
            num_repeats=2,
        ):
            if isinstance(outcome, rk.Rollout):
                print(outcome.reward)
        table = await rk.collect(rows, model=lambda params: "4", environment="string_match")
    """
    if rows is not None or isinstance(tasks, Servers):
        if servers is not None:
            raise ConfigError("servers: given twice, once before the tasks: leave one out")
        where, wanted = cast(Where, tasks), rows
    else:
        where, wanted = servers, cast(Tasks, tasks)
    own: dict[str, Any] = {**keys}
    parts = read_parts(own, parallelism, limits, retry, sink)
    reach = read_benchmark(read_reach(where, Given(model, verify, environment), own), wanted, own)
    return Collecting(reach, wanted, read_collect(wanted, output, own), parts, progress)


def reverify(
    rollouts: str | Path | Where,
    stored: str | Path | None = None,
    *,
    servers: Where | None = None,
    verify: Verified | None = None,
    environment: Environment | None = None,
    output: str | Path | None = None,
    parallelism: int | None = None,
    retry: int | None = None,
    progress: Progress = None,
    **keys: Unpack[ReverifyKeys],
) -> Reverifying:
    """Verify stored responses again, without the policy: iterate over the result, or await it.

    - `rollouts` is a file that a collection wrote, and `output` another one, to which the new
      verdicts are appended.
    - `servers`, `verify` and `environment` are those of `collect`. What the run starts itself needs
      no policy model. A rollout is verified by the agent whose name it has.
    - `parallelism` is the number of verifications in flight, `retry` the number of attempts at one.
    - `progress` is that of `collect`.
    - `keys` are those of `ng_reverify`, such as `stale_only=True`.

    `reverify(servers, rollouts)` is accepted too. Raises ConfigError here, and ConfigError,
    OutputError or StopRun during the iteration.

    Example:

        await rk.collect(
            rows, model=lambda params: "4", environment="string_match", output="stored.jsonl"
        )
        table = await rk.reverify("stored.jsonl", environment="string_match", output="again.jsonl")
        print(table.metrics["verdicts"])
    """
    if stored is not None or isinstance(rollouts, Servers):
        if servers is not None:
            raise ConfigError("servers: given twice, once before the rollouts: leave one out")
        where, path = cast(Where, rollouts), stored
    else:
        where, path = servers, rollouts
    own: dict[str, Any] = {**keys}
    read_parts(own, parallelism, None, retry, None)
    reach = read_reach(where, Given(verify=verify, environment=environment), own)
    command = read_reverify(cast(str, path), output, own)
    return Reverifying(replace(reach, kind=ReverifyConfig), command, progress)
