"""Collections for synchronous code: a run with an event loop in a thread of its own."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, ParamSpec, TypeVar

from ..collecting.results import Status
from ..errors import ConfigError
from ..types import JsonObject, Outcome
from .runs import Collected, Collecting, collect

P = ParamSpec("P")
R = TypeVar("R")

QUEUED = 1000
"""Outcomes that may wait for a consumer."""


def _taking_arguments_of(
    other: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Declare that a function takes the arguments of another one."""
    del other
    return lambda function: function


class CollectingSync:
    """What `collect_sync` returns: iterate over it, or take its `table()`, once."""

    def __init__(self, run: Collecting) -> None:
        self._run_itself = run
        self._ready: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Event()
        self._has_begun = False

    @property
    def metrics(self) -> JsonObject | None:
        """What the metrics file holds, once the run has ended."""
        return self._run_itself.metrics

    @property
    def status(self) -> Status | None:
        """How the run has ended."""
        return self._run_itself.status

    def table(self) -> Collected:
        """Run to the end; what `await` gives for `collect`."""
        table = Collected(self._run_itself.output)
        for outcome in self:
            table.take(outcome)
        return table.end(self.metrics, self.status)

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
        async with aclosing(self._run_itself.__aiter__()) as outcomes:
            async for outcome in outcomes:
                self._ready.put(outcome)
                if self._ready.qsize() >= QUEUED:
                    self._room.clear()
                    await self._room.wait()

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


@_taking_arguments_of(collect)
def collect_sync(*given: Any, **named: Any) -> CollectingSync:
    """`collect` for synchronous code, with the same arguments: iterate over the result, or take its
    `table()`.

    It works inside a running event loop too, for example in a notebook. Servers that run in another
    event loop cannot be used: give the name of a YAML file, the URL of an `ng_run`, or objects.
    Leaving the loop cancels what is in flight. Raises what `collect` raises.

    Example:

        for outcome in rk.collect_sync(rows, model=lambda params: "4", environment="string_match"):
            print(outcome.key.task_id)
    """
    return CollectingSync(collect(*given, **named))
