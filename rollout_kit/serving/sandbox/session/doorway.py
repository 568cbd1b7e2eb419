"""One address outside that programs of a session reach, and nothing else of the network.

The session's own socket is accepted here, and each connection is passed on to the address, byte for
byte. So the session stays without a network, and the address may be in another process or on
another machine.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

from .client import ShellSession

OUTSIDE = "http://gateway.invalid"
"""How texts name the address before its port in the session is known."""

MAX_CONNECTIONS = 64
"""Open connections of one session; further ones are closed at once."""

CONNECT_S = 10.0


class _End(asyncio.Protocol):
    """One side of a connection: what comes here is written to `other`."""

    def __init__(self) -> None:
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None
        self.when_lost = asyncio.Event()
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def join(self, other: "_End") -> None:
        self.other = other
        for part in self._early:
            self.data_received(part)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
            if self.transport is not None:
                self.transport.pause_reading()
        elif self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.when_lost.set()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@asynccontextmanager
async def leading_to(session: ShellSession, host: str, port: int) -> AsyncIterator[int]:
    """Context in which programs of the session reach the address on 127.0.0.1, at the port that
    is given. All connections end with it."""
    listener = await session.listen()
    listener.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()
    accepting = asyncio.create_task(_accept(listener, host, port, tasks))
    try:
        yield listener.getsockname()[1]
    finally:
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)
        listener.close()


async def _accept(
    listener: socket.socket, host: str, port: int, tasks: set[asyncio.Task[None]]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, _ = await loop.sock_accept(listener)
        except OSError:  # no descriptor is free, say
            await asyncio.sleep(0.1)
            continue
        if len(tasks) >= MAX_CONNECTIONS:
            sock.close()
            continue
        task = loop.create_task(_pass_on(sock, host, port))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _pass_on(sock: socket.socket, host: str, port: int) -> None:
    loop, near, far = asyncio.get_running_loop(), _End(), _End()
    try:
        await loop.connect_accepted_socket(lambda: near, sock)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: far, host, port)
            near.join(far)
            far.join(near)
            for end, other in ((near, far), (far, near)):
                if other.transport is None and end.transport is not None:
                    end.transport.close()
            if near.transport is not None:
                near.transport.resume_reading()
            await near.when_lost.wait()
            await far.when_lost.wait()
    finally:
        near.abort()
        far.abort()
