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

MAX_PIPELINED = 16
"""Requests of one connection that may wait; reading pauses at this number."""

LINGER_ZERO = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that turns a close into a reset."""


@dataclass(slots=True)
class BareRequest:
    """`path` has no query; header names are in lower case."""

    method: str = ""
    path: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    keeps_alive: bool = True


Answerer = Callable[[BareRequest, "BareConnection"], None]
"""Writes to the connection, now or later, and then calls `done`, `close` or `reset`."""


@asynccontextmanager
async def listening(
    answerer: Answerer, sock: socket.socket, max_body: int = MAX_BODY
) -> AsyncIterator[None]:
    """Context in which `answerer` receives every request on `sock`. Larger ones are refused."""
    loop = asyncio.get_running_loop()
    connections: set[BareConnection] = set()
    server = await loop.create_server(
        lambda: BareConnection(answerer, connections, max_body), sock=sock, backlog=BACKLOG
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
        self, answerer: Answerer, connections: set["BareConnection"], max_body: int = MAX_BODY
    ) -> None:
        self._answerer, self._left, self._max_body = answerer, max_body, max_body
        self._connections = connections
        self._waiting: deque[BareRequest] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._coming = BareRequest()
        self._is_starting = False
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
        self._waiting.clear()
        if self.current is not None and self.when_lost:
            self.when_lost()
        self.current = self.when_lost = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.close()

    def on_message_begin(self) -> None:
        self._coming, self._url, self._body = BareRequest(), b"", []
        self._left = self._max_body

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._coming.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        expects = (b"expect", b"100-continue")
        if expects in self._coming.headers and not self.is_busy:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._left -= len(body)
        if self._left >= 0:
            self._body.append(body)
        elif self._body:
            self._body = []
            self.write(head(413, "text/plain", (("connection", "close"),), 0))
            self.close()

    def on_message_complete(self) -> None:
        request = self._coming
        request.method = self._parser.get_method().decode("ascii")
        request.path = self._url.partition(b"?")[0].decode("latin-1")
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
        if ended and not ended.keeps_alive:
            self.close()
        else:
            self._start()

    def close(self) -> None:
        """Close the connection after sending what was written."""
        self.current = self.when_lost = None
        self._waiting.clear()
        if self._transport:
            self._transport.close()

    def reset(self) -> None:
        """Reset the connection at once."""
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
