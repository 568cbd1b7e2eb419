"""A minimal HTTP/1.1 server: it parses requests, and an answerer writes the replies.

It supports keep-alive and pipelining. An answerer can also stop in the middle of a reply or reset
the connection, which HTTP frameworks do not allow.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

from .peer_user import PeerUser

BACKLOG = 2048
"""Connections that may wait to be accepted."""

STOP_S = 2.0
"""Time for requests in flight when the server stops."""

MAX_BODY = 1 << 30
"""Bytes of a request, unless an answerer takes fewer."""

MAX_HEAD = 1 << 17
"""Bytes that a request may have besides its body."""

CHUNK_COST = 8
"""Further such bytes for each byte of the body: it may come in chunks of one."""

MAX_PIPELINED = 16
"""Requests of one connection that may wait; reading pauses at this number."""

LINGER_ZERO = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that turns a close into a reset."""


@dataclass(slots=True)
class BodyRoom:
    """How many bytes of bodies may wait for an answer, over several connections."""

    left: int


@dataclass(slots=True)
class BareRequest:
    """`path` has no query; header names are in lower case."""

    method: str = ""
    path: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    keeps_alive: bool = True
    size: int = 0
    room: BodyRoom | None = None

    def take(self, num_bytes: int) -> bool:
        """Add bytes to the body; False if the room has no more."""
        self.size += num_bytes
        if self.room is not None:
            self.room.left -= num_bytes
        return self.room is None or self.room.left >= 0

    def give_back(self) -> None:
        if self.room is not None:
            self.room.left += self.size
            self.room = None


Answerer = Callable[[BareRequest, "BareConnection"], None]
"""Writes to the connection, now or later, and then calls `done`, `close` or `reset`."""


FindRoom = Callable[[str], BodyRoom]
"""The room for a request to a path."""


@asynccontextmanager
async def listening(
    answerer: Answerer,
    sock: socket.socket,
    max_body: int = MAX_BODY,
    find_room: FindRoom | None = None,
) -> AsyncIterator[None]:
    """Context in which `answerer` receives every request on `sock`. Those that are larger, or that
    find no room, are refused."""
    loop = asyncio.get_running_loop()
    connections: set[BareConnection] = set()
    server = await loop.create_server(
        lambda: BareConnection(answerer, connections, max_body, find_room),
        sock=sock,
        backlog=BACKLOG,
    )
    try:
        yield
    finally:
        server.close()
        give_up = loop.time() + STOP_S
        while any(each.is_busy for each in connections) and loop.time() < give_up:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for each in list(connections):
            each.close()
        await asyncio.sleep(0)
        for each in list(connections):  # the clients that do not read
            each.reset()
        await asyncio.sleep(0)
        sock.close()


class BareConnection(asyncio.Protocol):
    def __init__(
        self,
        answerer: Answerer,
        connections: set["BareConnection"],
        max_body: int = MAX_BODY,
        find_room: FindRoom | None = None,
    ) -> None:
        self._answerer, self._max_body, self._find_room = answerer, max_body, find_room
        self._connections = connections
        self._waiting: deque[BareRequest] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._coming = BareRequest()
        self._is_starting = self._is_refused = False
        self._num_begun = self._num_besides = 0
        self.peer_user = PeerUser(None)
        self.current: BareRequest | None = None
        self.when_lost: Callable[[], None] | None = None
        """Called if the client disconnects before its answer is complete."""

    @property
    def is_busy(self) -> bool:
        return self.current is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        self._connections.add(self)
        self.peer_user = PeerUser(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        self._give_back()
        self._waiting.clear()
        if self.current is not None and self.when_lost:
            self.when_lost()
        self.current = self.when_lost = None

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        begun, size = self._num_begun, self._coming.size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400)
        if self._num_begun != begun:
            self._num_besides = 0
            return
        self._num_besides += len(data) - (self._coming.size - size)
        if self._num_besides > MAX_HEAD + CHUNK_COST * self._coming.size:
            self._refuse(431)

    def on_message_begin(self) -> None:
        self._coming, self._url, self._body = BareRequest(), b"", []
        self._num_begun += 1

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._coming.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._coming.path = self._url.partition(b"?")[0].decode("latin-1")
        if self._find_room is not None:
            self._coming.room = self._find_room(self._coming.path)
        expects = (b"expect", b"100-continue")
        if expects in self._coming.headers and not self.is_busy:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        if self._coming.take(len(body)) and self._coming.size <= self._max_body:
            self._body.append(body)
        else:
            self._refuse(413)

    def _refuse(self, status: int) -> None:
        """Answer once, and read no more of this connection."""
        if not self._is_refused:
            self._is_refused = True
            self._body = []
            self.write(head(status, "text/plain", (("connection", "close"),), 0))
            self.close()

    def on_message_complete(self) -> None:
        if self._is_refused:
            return
        request = self._coming
        request.method = self._parser.get_method().decode("ascii")
        request.body = b"".join(self._body)
        request.keeps_alive = self._parser.should_keep_alive()
        self._waiting.append(request)
        if len(self._waiting) == MAX_PIPELINED and self._transport:
            self._transport.pause_reading()
        self._start()

    def _start(self) -> None:
        """Answer the waiting requests in order; an answer may be complete at once."""
        if self._is_starting:
            return
        self._is_starting = True
        while self._waiting and not self.is_busy:
            if len(self._waiting) == MAX_PIPELINED and self._transport:
                self._transport.resume_reading()
            self.current = self._waiting.popleft()
            self._answerer(self.current, self)
        self._is_starting = False

    def write(self, raw: bytes) -> None:
        if self._transport:
            self._transport.write(raw)

    def done(self) -> None:
        """The answer is written; go on with the next request."""
        ended, self.current, self.when_lost = self.current, None, None
        if ended:
            ended.give_back()
        if ended and not ended.keeps_alive:
            self.close()
        else:
            self._start()

    def _give_back(self) -> None:
        """Nothing of this connection takes room any more."""
        for request in (self._coming, *self._waiting, *filter(None, (self.current,))):
            request.give_back()

    def close(self) -> None:
        """Close the connection after sending what was written."""
        self._give_back()
        self.current = self.when_lost = None
        self._waiting.clear()
        if self._transport:
            self._transport.close()

    def reset(self) -> None:
        """Reset the connection at once."""
        self._give_back()
        self.current = self.when_lost = None
        self._waiting.clear()
        if self._transport:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            self._transport.abort()


Headers = tuple[tuple[str, str], ...]

REASONS = {status.value: status.phrase for status in HTTPStatus}


def head(status: int, content_type: str, headers: Headers = (), length: int | None = None) -> bytes:
    """The head of a reply; without a length the body is sent in chunks."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}", f"content-type: {content_type}"]
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(raw: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(raw), raw)


LAST_CHUNK = b"0\r\n\r\n"
