"""Descriptors for the input and output of a run."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


class Capture:
    """A pipe that is read up to a limit; then `stop` is called once."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit: int, stop: Callable[[], None]
    ) -> None:
        self._loop, self._limit, self._stop = loop, limit, stop
        self.data = bytearray()
        self.is_full = False

    def __enter__(self) -> Self:
        self._source, self.sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._source, False)
        return self

    def begin(self) -> None:
        """Start to read. Closes our copy of the writing end, so that a writer can see our end."""
        os.close(self.sink)
        self.sink = -1
        self._loop.add_reader(self._source, self._ready)

    def read_rest(self) -> None:
        """Read what is there; call it when nobody writes any more."""
        while self._ready():
            pass

    def _ready(self) -> bool:
        """Read a part; False if there is none."""
        try:
            part = os.read(self._source, 1 << 16)
        except BlockingIOError:
            return False
        if not part:
            self._loop.remove_reader(self._source)
            return False
        self.data += part[: self._limit - len(self.data)]
        if len(self.data) >= self._limit and not self.is_full:
            self.is_full = True
            self._stop()
        return True

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._source)
        os.close(self._source)
        if self.sink >= 0:
            os.close(self.sink)


@contextmanager
def sealed(data: bytes) -> Iterator[int]:
    """A descriptor to read `data` from; it cannot be written to."""
    descriptor = os.memfd_create("run", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)
