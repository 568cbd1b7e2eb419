"""The event loop of every process: uvloop if available, with room for thousands of connections."""

import asyncio
import gc
import resource
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")

OPEN_FILES = 65_536
"""Requested limit of file descriptors: the usual soft limit of 1,024 is too low."""

NUM_THREADS = 8
"""Threads for blocking calls, such as forcing rows to disk."""

GC_THRESHOLDS = (50_000, 20, 100)
"""Thresholds of the garbage collector. With the defaults it took a third of the CPU at a
parallelism of 1,024, though reference counting frees nearly all objects."""

MAX_TOGETHER = 64
"""Replies after which a group goes on without waiting for more."""

QUIET_TURNS = 8
"""Turns of the loop without a step after which the work on an earlier group has ended. While one
rollout ends and the next one begins, some turns have no step."""

MAX_TURNS, MAX_GATHER_S = 64, 0.05
"""Turns of the loop, and seconds, after which a group goes on in any case."""


def run(main: Coroutine[None, None, T]) -> T:
    """Run `main` to its end on a new loop."""
    try:
        _raise_file_limit()
        gc.freeze()  # objects made at start-up stay alive: the collector need not scan them
        gc.set_threshold(*GC_THRESHOLDS)
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(main)
    finally:
        main.close()  # Python warns of one that Ctrl-C kept from its start


@contextmanager
def interrupts(act: Callable[[], object]) -> Iterator[None]:
    """Context in which Ctrl-C and SIGTERM call `act`, and end nothing themselves."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class Begun(Generic[T]):
    """A coroutine that has run up to its first wait, in the running task. Await it once, there.

    If it needed no wait it `is_done`, and no timer was needed beside it. Awaiting it raises its
    error.
    """

    __slots__ = ("_awaited", "_coroutine", "error", "is_done", "result")

    result: T
    error: BaseException | None

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine, self._awaited = coroutine, None
        self.is_done, self.error = True, None
        try:
            self._awaited = coroutine.send(None)
            self.is_done = False
        except StopIteration as end:
            self.result = end.value
        except Exception as error:
            self.error = error

    def __await__(self) -> Generator[Any, Any, T]:
        if self.error is not None:
            raise self.error
        while not self.is_done:
            try:
                value = yield self._awaited
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, value)
            try:
                self._awaited = step()
            except StopIteration as end:
                self.result, self.is_done = end.value, True
        return self.result


class _Step:
    """Await it between two parts of the work on a reply; see `Lockstep`. It takes one turn of the
    loop. Whoever is cancelled here must not lose the response of a rollout."""

    __slots__ = ("num_taken",)

    def __init__(self) -> None:
        self.num_taken = 0

    def __await__(self) -> Generator[None, None, None]:
        self.num_taken += 1
        return iter((None,))  # type: ignore[return-value]


step = _Step()


class _Turns:
    """Turns of the loop since the object was made."""

    __slots__ = ("_num", "_num_quiet", "_num_taken")

    def __init__(self) -> None:
        self._num = self._num_quiet = 0
        self._num_taken = step.num_taken

    def are_enough(self) -> bool:
        """Whether the work that went on has ended, or is not waited for any longer. Call it once in
        each turn."""
        self._num += 1
        self._num_quiet += 1
        if self._num_taken != step.num_taken:
            self._num_taken, self._num_quiet = step.num_taken, 0
        return self._num_quiet >= QUIET_TURNS or self._num >= MAX_TURNS


def when_quiet(act: Callable[[], object]) -> None:
    """Call `act` once the work that goes on has taken its steps, or after MAX_TURNS."""
    loop, turns = asyncio.get_running_loop(), _Turns()

    def look() -> None:
        if turns.are_enough():
            act()
        else:
            loop.call_soon(look)

    loop.call_soon(look)


class Lockstep(Generic[T]):
    """Has the work on many replies go on together: each step of it for all, then the next step.

    A processor runs a step faster if it has just run the same one: it has learned the branches, and
    code and data are in its caches. Short rollouts take 30 % less CPU time, though they run more
    instructions. So replies gather here until the work on those before them has ended.
    """

    def __init__(self) -> None:
        self._gathered: list[tuple[asyncio.Future[T], T]] = []

    def settle(self, waiter: "asyncio.Future[T]", reply: T) -> None:
        """Give `waiter` its result, together with others."""
        self._gathered.append((waiter, reply))
        if len(self._gathered) == 1:
            self._loop, self._turns = waiter.get_loop(), _Turns()
            self._ends = self._loop.time() + MAX_GATHER_S
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        has_room = len(self._gathered) < MAX_TOGETHER and self._loop.time() < self._ends
        if has_room and not self._turns.are_enough():
            self._loop.call_soon(self._look)
            return
        gathered, self._gathered = self._gathered, []
        for waiter, reply in gathered:
            if not waiter.done():
                waiter.set_result(reply)


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all concurrently; on an error cancel the others, then raise it unchanged."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel the tasks, and return when they have ended; what they raise is dropped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Context in which `work` goes on; it is cancelled at the end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancel_all([task])


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="worker"))
    return loop


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
