"""What the processes of a session print, as far as it is kept."""

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Self

MAX_PRINTED = 64 << 20
"""A command that prints more is killed."""

MAX_LATER = 1 << 20
"""What is taken from processes that outlive their command before nobody listens any more."""

CONTROLS = re.compile(
    rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_=>]"
)
"""Sequences with which programs move the cursor and choose colours."""


class HeadAndTail:
    """The first and the last part of a text of any length."""

    def __init__(self, most: int) -> None:
        self._most = most // 2
        self._head, self._tail = bytearray(), bytearray()
        self.size = 0

    def add(self, part: bytes) -> None:
        self.size += len(part)
        free = self._most - len(self._head)
        self._head += part[:free]
        self._tail += part[free:] if free < len(part) else b""
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]

    def text(self) -> str:
        head = self._head.decode(errors="replace")
        tail = bytes(self._tail[-self._most :])
        left_out = self.size - len(self._head) - len(tail)
        if left_out <= 0:
            return (self._head + tail).decode(errors="replace")
        return f"{head}\n[… {left_out} bytes are left out …]\n{tail.decode(errors='replace')}"


class Stream:
    """A pipe of which the head and the tail are kept. After `finish`, it is read on, for processes
    that still write to it, up to MAX_LATER."""

    def __init__(self, most: int, stop: Callable[[], None]) -> None:
        self.kept = HeadAndTail(most)
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._source, self.sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._source, False)
        self._left = MAX_PRINTED
        self._is_finished = False
        self._loop.add_reader(self._source, self._read)

    def move(self, source: int) -> None:
        """Read from another pipe."""
        self.close()
        os.set_inheritable(source, False)
        os.set_blocking(source, False)
        self._source = source
        self._loop.add_reader(source, self._read)

    def close_sink(self) -> None:
        os.close(self.sink)
        self.sink = -1

    def _read(self) -> bool:
        """Read a part; False if there is none now."""
        if self._source < 0:
            return False
        try:
            part = os.read(self._source, 1 << 16)
        except BlockingIOError:
            return False
        if not part:
            self.close()
            return False
        self._left -= len(part)
        if not self._is_finished:
            self.kept.add(part)
        if self._left <= 0:
            if self._is_finished:
                self.close()
            else:
                self._stop()
        return True

    def finish(self) -> str:
        """What was printed until now."""
        while self._left > 0 and self._read():
            pass
        self._is_finished = True
        self._left = MAX_LATER
        return self.kept.text()

    @property
    def is_closed(self) -> bool:
        return self._source < 0

    def close(self) -> None:
        if self.sink >= 0:
            self.close_sink()
        if self._source >= 0:
            self._loop.remove_reader(self._source)
            os.close(self._source)
            self._source = -1


class Screen:
    """What a terminal shows, from the last reading on: at most `most` bytes, the newest."""

    PART, PAUSE_S = 1 << 18, 0.05
    """So much is read at once, then nothing for a moment: a program may print without end."""

    def __init__(self, master: int, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._master, self._most = master, most
        self._unread, self._left_out = bytearray(), 0
        self._changed = asyncio.Event()
        self.is_closed = False
        os.set_blocking(master, False)
        self._timer: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._master, self._read)

    def _read(self) -> None:
        taken = 0
        while taken < self.PART:
            try:
                part = os.read(self._master, 1 << 16)
            except BlockingIOError:
                break
            except OSError:  # no process has the terminal any more
                part = b""
            if not part:
                self.close()
                break
            taken += len(part)
            self._unread += part
        else:
            self._loop.remove_reader(self._master)
            self._timer = self._loop.call_later(self.PAUSE_S, self._listen)
        if (too_many := len(self._unread) - self._most) > 0:
            del self._unread[:too_many]
            self._left_out += too_many
        self._changed.set()

    def send(self, data: bytes) -> None:
        """Type; SessionRefused is for the caller if the program does not read."""
        os.write(self._master, data)

    async def read(self, wait_for: str, timeout_s: float) -> tuple[str, bool]:
        """What is new, and whether `wait_for` is in it. Without it, waits for anything."""
        wanted = wait_for.encode()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_closed and not self._has(wanted):
                    self._changed.clear()
                    await self._changed.wait()
        found = self._has(wanted)
        text = clean(bytes(self._unread))
        if self._left_out:
            text = f"[… {self._left_out} bytes are left out …]\n{text}"
        self._unread.clear()
        self._left_out = 0
        return text, found

    def _has(self, wanted: bytes) -> bool:
        shown = CONTROLS.sub(b"", self._unread).replace(b"\r\n", b"\n")
        return wanted in shown if wanted else bool(shown)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self._master)
            os.close(self._master)
            self._changed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def clean(data: bytes) -> str:
    """Text without the sequences for a terminal."""
    return CONTROLS.sub(b"", data).decode(errors="replace").replace("\r\n", "\n")
