"""One HTTP/1.1 connection: bytes out, a reply in, at most one request at a time.

A client for JSON over keep-alive connections, and no more; httptools (Node's parser) does the
parsing. A general client costs five times the CPU, which is most of what a rollout costs at all.
"""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httptools

Pairs = list[tuple[bytes, bytes]]

Arrived = Callable[[bytes], None]
"""Takes the pieces of a body as they come. It must not raise."""

EVENT_STREAM = b"text/event-stream"


class Broken(Exception):
    """The connection ended, or carried something else than HTTP, before the reply was whole."""


@dataclass(slots=True)
class Headers:
    """A reply's headers; names are case-insensitive, and may occur more than once."""

    pairs: Pairs

    def getall(self, name: str) -> list[str]:
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.pairs if key.lower() == wanted]

    def starting_with(self, prefix: str) -> dict[str, str]:
        """Those whose names begin so, by name in small letters."""
        start, length = prefix.encode(), len(prefix)
        return {
            key.lower().decode("latin-1"): value.decode("latin-1")
            for key, value in self.pairs
            if key[:length].lower() == start
        }

    def get(self, name: str, default: str = "") -> str:
        """The first of that name."""
        return next(iter(self.getall(name)), default)


@dataclass(slots=True)
class Reply:
    """A whole reply. `raw` is empty where its body was handed over as it came."""

    status: int
    headers: Headers
    raw: bytes

    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")


class Connection(asyncio.Protocol):
    """`ask` sends a request; `is_open` until either side has ended it."""

    def __init__(self) -> None:
        self.is_open = False
        self.idle_since = 0.0
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[Reply] | None = None

    async def ask(self, request: Sequence[bytes], arrived: Arrived | None = None) -> Reply:
        """The reply to a request, given in pieces; Broken where there is none. Giving up waiting
        ends the connection. A stream of events is handed to `arrived`, and nothing else is."""
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Pairs = []
        self._headers_are_whole = False
        self._body: list[bytes] = []
        self._arrived = arrived
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.writelines(request)
        try:
            return await self._waiter
        except BaseException:
            self.end("it was given up")
            raise

    def end(self, why: str) -> None:
        """Now; whoever waits for a reply gets Broken."""
        waiter, self._waiter = self._waiter, None
        self.is_open = False
        self._transport.abort()
        if waiter is not None and not waiter.done():
            waiter.set_exception(Broken(why))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            # it must not be taken for the reply to the next request
            self.end("something came that nobody had asked for")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.end(f"what came is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiter is None:
            return
        if exc is None and self._lasts_to_the_end:
            self._finish(keep=False)
        else:
            self.end(str(exc) if exc else "the server closed the connection without a whole reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._headers_are_whole = True
        if self._arrived and not _is_stream(self._headers):
            self._arrived = None

    def on_body(self, data: bytes) -> None:
        if self._arrived:
            self._arrived(data)
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # such as 100 Continue: the reply is still to come
            self._headers, self._headers_are_whole = [], False
        else:
            self._finish(keep=self._parser.should_keep_alive())

    @property
    def _lasts_to_the_end(self) -> bool:
        """Whether this reply is over when its connection is: it began, and tells no length."""
        names = {name.lower() for name, _ in self._headers}
        return self._headers_are_whole and not names & {b"content-length", b"transfer-encoding"}

    def _finish(self, *, keep: bool) -> None:
        waiter, self._waiter = self._waiter, None
        if not keep or waiter is None:  # nobody waits for a second reply to one request
            self.end("it is over")
        if waiter is None or waiter.done():
            return
        body = self._body
        raw = body[0] if len(body) == 1 else b"".join(body)
        try:
            raw = _decompress(raw, self._headers)
        except zlib.error as error:
            waiter.set_exception(Broken(f"its body cannot be unpacked: {error}"))
            return
        waiter.set_result(Reply(self._parser.get_status_code(), Headers(self._headers), raw))


def _is_stream(headers: Pairs) -> bool:
    """Whether the body is one of events, and not compressed."""
    told = {name.lower(): value.lower() for name, value in headers}
    is_packed = told.get(b"content-encoding", b"identity") != b"identity"
    return told.get(b"content-type", b"").startswith(EVENT_STREAM) and not is_packed


def _decompress(raw: bytes, headers: Pairs) -> bytes:
    """The body without its compression, which is not asked for, and yet some send it."""
    for name, value in headers:
        if len(name) == 16 and name.lower() == b"content-encoding" and raw:
            if value.lower() not in (b"gzip", b"x-gzip", b"deflate"):
                continue
            return zlib.decompress(raw, wbits=zlib.MAX_WBITS | 32)
    return raw
