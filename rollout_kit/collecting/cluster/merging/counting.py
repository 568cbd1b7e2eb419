"""Counts the rollouts of a merge, in a process beside the one that writes them.

Counting takes about as much CPU as writing, so two processes need half the time.
"""

import os
import signal
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import orjson

from ....analysis.metrics.summary import Metrics
from ....errors import OutputError
from ....store.groups.members import hold
from ....store.lines import rollout_of
from ....store.scope import Group, group_of

T = TypeVar("T")

LOOK_EVERY = 4096
"""Lines after which the process looks whether the merge goes on."""


@dataclass(slots=True)
class Counted:
    """What the lines of a merge come to."""

    metrics: Metrics
    groups: set[Group] = field(default_factory=set)
    """Those that have rollouts, if one of them is scored."""
    digests: dict[Group, int] = field(default_factory=dict)
    """Scored group → the sum of the digests of its members."""


def count(lines: Iterable[bytes], pass_threshold: float, scored: Container[Group]) -> Counted:
    """Count lines of rollouts. `scored` are the groups that have a score."""
    found = Counted(Metrics(pass_threshold))
    for raw in lines:
        rollout = rollout_of(orjson.loads(raw))
        found.metrics.add(rollout)
        if scored:
            found.groups.add(group := group_of(rollout.key))
            if group in scored:
                digest = hold(rollout.key, rollout.head).digest
                found.digests[group] = found.digests.get(group, 0) + digest
    return found


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Context with a process that does `work`; gives a function that waits for the result. Errors
    of the work are raised by it; OutputError if the process was killed."""
    from multiprocessing import Pipe, get_context  # only a large merge needs it

    receiving, sending = Pipe(duplex=False)
    process = get_context("fork").Process(target=_send, args=(work, sending.send), daemon=True)
    process.start()
    sending.close()

    def wait() -> T:
        try:
            found = receiving.recv()
        except EOFError:
            raise OutputError(
                "the process that counts the rollouts was killed: run the same command again"
            ) from None
        if isinstance(found, BaseException):
            raise found
        return found

    try:
        yield wait
    finally:
        process.kill()
        process.join()
        receiving.close()


def until_orphaned(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, as long as the process that started this one lives."""
    parent = os.getppid()
    for number, raw in enumerate(lines):
        if number % LOOK_EVERY == 0 and os.getppid() != parent:
            raise BrokenPipeError
        yield raw


def _send(work: Callable[[], T], send: Callable[[T | Exception], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both: the other one ends this one
    try:
        found: T | Exception = work()
    except Exception as error:
        found = error
    try:
        send(found)
    except BrokenPipeError:
        return
