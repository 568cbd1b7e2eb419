"""What waits for a tracker. Nothing here waits itself, and nothing grows without bound."""

from collections import deque
from itertools import islice

import orjson

from ...store.lines import build_failure_line
from ...types import Failure, Outcome, Unverified
from .link import Message

MAX_LINES = 10_000
"""Rollouts that may wait; further ones are dropped, and counted."""

MAX_BYTES = 256_000_000
"""The same for the size of their lines."""

BATCH, BATCH_BYTES = 100, 4_000_000
"""Rollouts of one message, and about its size: the loop is busy while it is written."""


class Latest:
    """The last figures: newer ones replace those that were not sent."""

    num_dropped = 0

    def __init__(self) -> None:
        self._message: Message | None = None

    def put(self, step: int, figures: dict[str, float]) -> None:
        content = {"step": step, "figures": figures}
        self._message = Message("log", content, "the last figures")

    def peek(self) -> Message | None:
        return self._message

    def remove(self, message: Message) -> None:
        if self._message is message:
            self._message = None


class Backlog:
    """The lines of rollouts that have ended, in their order."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._lines: deque[str] = deque()
        self._size = 0

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome."""
        if isinstance(outcome, Unverified) and outcome.error is None:
            return  # its verdict is still to come
        if len(self._lines) >= MAX_LINES or self._size >= MAX_BYTES:
            self.num_dropped += 1
            return
        is_failure = isinstance(outcome, Failure)
        line = orjson.dumps(build_failure_line(outcome, "") if is_failure else outcome.line)
        self._lines.append(line.decode())
        self._size += len(line)

    def peek(self) -> Message | None:
        batch: list[str] = []
        size = 0
        for line in islice(self._lines, BATCH):
            batch.append(line)
            size += len(line)
            if size >= BATCH_BYTES:
                break
        return Message("lines", batch, "rollouts") if batch else None

    def remove(self, message: Message) -> None:
        for _ in message.content:
            self._size -= len(self._lines.popleft())
