"""The event loop of every process: fast where it can be, and with room for thousands of
connections."""

import asyncio
import gc
import resource
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

OPEN_FILES = 65_536
"""Descriptors asked for: the usual soft limit of 1,024 is below a parallelism that people use."""

NUM_THREADS = 8
"""For blocking calls of our own, such as forcing rows to disk."""

GC_THRESHOLDS = (50_000, 20, 100)
"""Thousands of rollouts in flight are alive and no garbage; looking for it among them took a third
of the CPU at a parallelism of 1,024. Almost everything here is freed by its reference count."""


def run(main: Coroutine[None, None, T]) -> T:
    """Run `main` to its end on a new loop."""
    _raise_file_limit()
    gc.freeze()  # what start-up made stays: there is no use in looking through it again and again
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All side by side; the first error as it is, once the others have been cancelled."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
