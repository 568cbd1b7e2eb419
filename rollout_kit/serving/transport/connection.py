"""One HTTP/1.1 connection, with at most one request at a time.

It supports JSON over keep-alive connections only; httptools (Node's parser) parses the replies. A
general client needs five times the CPU, which would be most of the CPU time of a rollout.
"""

import asyncio
import io
import resource
import sys
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httptools

from ...time_limit import Extendable, extend_all
from .caller import HELD_HEADER
from .loop import Lockstep

Pairs = list[tuple[bytes, bytes]]

Arrived = Callable[[bytes], None]
"""Receives the pieces of a body as they arrive. Must not raise."""

RESERVED_FILES = 64
"""Descriptors that connections leave to the files of a run and to child processes."""

UNLIMITED = sys.maxsize

TEXT_LIMIT = 1 << 18
"""Bytes of a reply that are read as text, for its error message."""

AT_ONCE = 1 << 20
"""Bytes that are decompressed at a time."""

PACKED = (b"gzip", b"x-gzip", b"deflate")

MANY = 16
"""Pieces of a body, of up to 256 KB each, that are put together at a time."""

EVENT_STREAM = b"text/event-stream"


class Broken(Exception):
    """The connection ended, or carried invalid HTTP, before the reply was complete."""


class TooLarge(Broken):
    """The reply is larger than the caller allows."""


@dataclass(slots=True)
class Headers:
    """A reply's headers. Names are case-insensitive and may occur more than once."""

    pairs: Pairs

    def getall(self, name: str) -> list[str]:
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.pairs if key.lower() == wanted]

    def starting_with(self, prefix: str) -> dict[str, str]:
        """The headers with this prefix, which is in lower case, by name in lower case."""
        start, found = prefix.encode(), dict[str, str]()
        for key, value in self.pairs:
            if key.lower().startswith(start):
                found[key.lower().decode("latin-1")] = value.decode("latin-1")
        return found

    def get(self, name: str, default: str = "") -> str:
        """The first header of that name."""
        return next(iter(self.getall(name)), default)


@dataclass(slots=True)
class Reply:
    """A complete reply. `raw` is empty if the body was passed on as it arrived."""

    status: int
    headers: Headers
    raw: bytes

    def text(self) -> str:
        """The body as text, cut to TEXT_LIMIT bytes."""
        return self.raw[:TEXT_LIMIT].decode("utf-8", "replace")

    def shorten(self) -> None:
        """Keep only what `text` returns, once the body is read: it may be large."""
        if len(self.raw) > TEXT_LIMIT:
            self.raw = self.raw[:TEXT_LIMIT]


class Body:
    """The body of one reply, as it arrives: decompressed, and never in memory twice."""

    __slots__ = ("_failed", "_left", "_pieces", "_unpacking", "_whole")

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._pieces: list[bytes] = []
        self._whole: io.BytesIO | None = None
        """The first pieces of a large body."""
        self._unpacking: Any = None
        self._failed: zlib.error | None = None

    def unpack(self) -> None:
        """What follows is compressed."""
        self._unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)

    def add(self, piece: bytes) -> None:
        """Take a piece; TooLarge if it decompresses to more than there may be."""
        if self._unpacking is None:
            self._keep(piece)
            return
        while piece and self._failed is None and not self._unpacking.eof:
            try:
                plain = self._unpacking.decompress(piece, AT_ONCE)
            except zlib.error as error:
                self._failed = error
                return
            self._left -= len(plain)
            if self._left < 0:
                raise TooLarge
            self._keep(plain)
            piece = self._unpacking.unconsumed_tail

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        if len(self._pieces) == MANY:
            # getvalue() of such a stream copies nothing, as joining pieces does
            self._whole = self._whole or io.BytesIO()
            self._whole.writelines(self._pieces)
            self._pieces.clear()

    def take(self) -> bytes:
        """The whole body, which is no longer here then; zlib.error if it cannot be decompressed."""
        if self._failed is not None:
            raise self._failed
        pieces, whole = self._pieces, self._whole
        self._pieces, self._whole = [], None
        if self._unpacking is not None and not self._unpacking.eof and (pieces or whole):
            raise zlib.error("incomplete or truncated stream")
        if whole is None:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        whole.writelines(pieces)
        return whole.getvalue()


class Connection(asyncio.Protocol):
    """`is_open` until either side ends the connection. Replies are handed on by `replies`."""

    def __init__(self, replies: Lockstep[Reply]) -> None:
        self._replies = replies
        self.is_open = False
        self.idle_since = 0.0
        self._on_lost: Callable[[], object] | None = None
        self._is_lost = False
        self.loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[Reply] | None = None

    def ask(
        self,
        request: Sequence[bytes | memoryview],
        arrived: Arrived | None = None,
        max_bytes: int = UNLIMITED,
        limits: Sequence[Extendable] | None = None,
    ) -> "asyncio.Future[Reply]":
        """Send a request, given in pieces. The result is the reply; Broken if there is none.

        A caller that stops waiting must `end` the connection. `arrived` receives the pieces of an
        event stream; any other body is in the reply. `max_bytes` bounds the reply, also when it is
        decompressed. `limits` are extended where an interim reply says so.
        """
        self._left = max_bytes
        self._headers: Pairs = []
        self._headers_are_whole = False
        self._body = Body(max_bytes)
        self._arrived, self._limits = arrived, limits
        self._waiter = replied = self.loop.create_future()
        self._transport.writelines(request)
        return replied

    def when_lost(self, act: Callable[[], object]) -> None:
        """Call `act` once the connection is gone, or now."""
        if self._is_lost:
            act()
        else:
            self._on_lost = act

    def end(self, why: str, kind: type[Broken] = Broken) -> None:
        """Close the connection at once; a waiting `ask` raises `kind`."""
        waiter, self._waiter = self._waiter, None
        self.is_open = False
        self._transport.abort()
        if waiter is not None and not waiter.done():
            waiter.set_exception(kind(why))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            # the next request must not take these bytes for its reply
            self.end("the server sent data without a request")
            return
        self._left -= len(data)
        if self._left < 0:
            self.end("", TooLarge)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.end(f"the reply is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open, self._is_lost = False, True
        if self._on_lost:
            self._on_lost()
        if self._waiter is None:
            return
        if exc is None and self._lasts_to_the_end:
            self._finish(keep=False)
        else:
            self.end(str(exc) if exc else "the server closed the connection before its reply ended")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._headers_are_whole = True
        if self._arrived and not _is_stream(self._headers):
            self._arrived = None
        if _is_packed(self._headers):
            self._body.unpack()

    def on_body(self, data: bytes) -> None:
        if self._arrived:
            self._arrived(data)
            return
        try:
            self._body.add(data)
        except TooLarge:
            self.end("", TooLarge)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # such as 100 Continue: the reply follows
            if self._limits and (seconds := Headers(self._headers).get(HELD_HEADER)):
                extend_all(self._limits, float(seconds))
            self._headers, self._headers_are_whole = [], False
        else:
            self._finish(keep=self._parser.should_keep_alive())

    @property
    def _lasts_to_the_end(self) -> bool:
        """Whether the end of the connection ends this reply: it has begun and names no length."""
        names = {name.lower() for name, _ in self._headers}
        return self._headers_are_whole and not names & {b"content-length", b"transfer-encoding"}

    def _finish(self, *, keep: bool) -> None:
        waiter, self._waiter = self._waiter, None
        if not keep or waiter is None:  # without a waiter it is a second reply to one request
            self.end("the reply is complete")
        if waiter is None or waiter.done():
            return
        try:
            raw = self._body.take()
        except zlib.error as error:
            waiter.set_exception(Broken(f"its body cannot be decompressed: {error}"))
            return
        reply = Reply(self._parser.get_status_code(), Headers(self._headers), raw)
        self._replies.settle(waiter, reply)


def max_connections() -> int:
    """Connections that one client may open: the files of the process need descriptors too, and it
    may have a second client."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else max(8, (soft - RESERVED_FILES) // 2)


class Places:
    """Places for the open connections of one client."""

    def __init__(self, number: int) -> None:
        self._free, self._taken = number, 0
        self.idle: list[deque[Connection]] = []
        """The idle connections of each host."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        if self._taken >= self._free:
            return False
        self._taken += 1
        return True

    def make_room(self) -> None:
        """End an idle connection, to any host; its place is free soon."""
        if found := next(filter(None, self.idle), None):
            found.popleft().end("its place was needed")

    def give_back(self) -> None:
        self._taken -= 1
        self.wake()

    def shrink(self) -> bool:
        """The system allows no more than there are; False if there are none."""
        self._taken -= 1
        self._free = self._taken
        return self._free > 0

    def wake(self) -> None:
        """Let one caller look for a connection again."""
        while self._waiting:
            if not (waiter := self._waiting.popleft()).done():
                waiter.set_result(None)
                return

    async def wait(self) -> None:
        self._waiting.append(waiter := asyncio.get_running_loop().create_future())
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done():
                self.wake()
            raise


def _is_stream(headers: Pairs) -> bool:
    """Whether the body is an event stream without compression."""
    values = {name.lower(): value.lower() for name, value in headers}
    is_packed = values.get(b"content-encoding", b"identity") != b"identity"
    return values.get(b"content-type", b"").startswith(EVENT_STREAM) and not is_packed


def _is_packed(headers: Pairs) -> bool:
    """Whether the body is compressed: some servers do that without being asked to."""
    for name, value in headers:
        if len(name) == 16 and name.lower() == b"content-encoding" and value.lower() in PACKED:
            return True
    return False
