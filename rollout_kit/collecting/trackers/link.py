"""The way to one tracker: its SDK runs in a process of its own, and gets what is in an outbox.

A process, because SDKs import for seconds, wait at the exit of the interpreter and cannot be
interrupted, and a process can be killed. The run never waits for it. Whatever goes wrong is one
warning, and is tried again at growing intervals.
"""

import asyncio
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...errors import number_of
from ...serving.workers.pool import WorkerPool
from ...types import JsonObject, Say

HERE = Path(__file__).parent

CALL_S = 90.0
"""Time limit of one call during the run, with the imports of the first."""

RETRY_S, MAX_RETRY_S = 2.0, 60.0
"""Seconds until a failed call is tried again, at first and at most; doubled each time."""

QUIET_S = 2.0
"""A longer wait at the end is announced."""

MAX_REASON = 200
"""Characters of an error that are shown."""


class Message(NamedTuple):
    """What to do, with what, and what people call it."""

    what: str
    content: Any
    shown: str


class Outbox(Protocol):
    """What waits to be sent."""

    num_dropped: int
    """Rollouts for which there was no room."""

    def peek(self) -> Message | None:
        """What to send next; None if there is nothing."""
        ...

    def remove(self, message: Message) -> None:
        """Forget what was sent."""
        ...


@dataclass(slots=True)
class Link:
    """`start` it before the run, and `close` it after."""

    name: str
    worker: str
    """File of the process's code."""
    settings: JsonObject
    """They reach the process with each call, and are no arguments of its command."""
    outbox: Outbox
    say: Say
    every_s: float = 1.0
    """Seconds between two messages."""
    _state: JsonObject = field(default_factory=dict)
    _has_warned: bool = False
    _is_closing: asyncio.Event = field(default_factory=asyncio.Event)
    _limit: asyncio.Timeout | None = None
    _pool: WorkerPool = field(init=False)
    _following: "asyncio.Task[None]" = field(init=False)

    def start(self) -> None:
        """Begin to send what comes into the outbox."""
        self._pool = WorkerPool(
            HERE / self.worker,
            "act",
            deadline_s=None,
            wall_deadline_s=CALL_S,
            environment=os.environ,  # SDKs find their keys there
            is_confined=False,
        )
        self._following = asyncio.create_task(self._follow())

    async def close(self, last: Sequence[Message], wait_s: float) -> None:
        """Send what is left and the `last` messages, for at most `wait_s`, and say what was not
        sent; then end the process."""
        self._is_closing.set()
        self._pool.wall_deadline_s = wait_s
        left: list[Message] | None = None
        announcing = asyncio.get_running_loop().call_later(QUIET_S, self._announce, wait_s)
        unsent: list[Message] = []
        try:
            async with asyncio.timeout(wait_s) as self._limit:
                await self._following
                left = [*self._left(), *last]
                while left:
                    try:
                        await self._send(left[0])
                    except Exception as error:  # SDKs raise anything
                        self._warn(str(error))
                        unsent.append(left[0])
                    left.pop(0)
        except TimeoutError:
            left = [*self._left(), *last] if left is None else left
        finally:
            self._limit = None
            announcing.cancel()
            await self._pool.close()
        self._say_unsent([*unsent, *(left or ())])

    def hurry(self) -> None:
        """End the wait of `close`."""
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _follow(self) -> None:
        retry_s = RETRY_S
        while not self._is_closing.is_set():
            message, pause_s = self.outbox.peek(), self.every_s
            if message is not None:
                try:
                    await self._send(message)
                    self.outbox.remove(message)
                    retry_s = RETRY_S
                except Exception as error:  # SDKs raise anything
                    self._warn(str(error))
                    pause_s, retry_s = retry_s, min(2 * retry_s, MAX_RETRY_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_closing.wait(), pause_s)

    async def _send(self, message: Message) -> None:
        called = (self.settings, self._state, message.what, message.content)
        found = await self._pool.call(*called)
        self._state = found["state"]
        for note in found["notes"]:
            self.say(note, event="tracker", tracker=self.name, note=note)

    def _left(self) -> Iterator[Message]:
        while (message := self.outbox.peek()) is not None:
            self.outbox.remove(message)
            yield message

    def _announce(self, wait_s: float) -> None:
        text = f"{self.name}: sending the rest, for up to {wait_s:g} s; Ctrl-C ends this"
        self.say(text, event="tracker", tracker=self.name)

    def _warn(self, reason: str) -> None:
        """Warn once."""
        if not self._has_warned:
            self._has_warned = True
            reason = textwrap.shorten(reason, MAX_REASON, placeholder=" …")
            text = f"warning: {self.name}: {reason}; the collection goes on without it"
            self.say(text, event="tracker", tracker=self.name, error=reason)

    def _say_unsent(self, unsent: Sequence[Message]) -> None:
        lines = sum(len(message.content) for message in unsent if message.what == "lines")
        number = lines + self.outbox.num_dropped
        shown = [message.shown for message in unsent if message.what != "lines" and message.shown]
        if number:
            shown.insert(0, number_of(number, "rollout"))
        if shown:
            text = f"warning: {self.name}: not sent: {', '.join(shown)}"
            self.say(text, event="tracker", tracker=self.name, unsent=shown)
