"""The HTTP client: connection limits, keep-alive, time limits, and typed failures.

It never repeats a request, because only the caller knows whether that is safe. A failure before a
byte was sent is a PeerUnreachable, so the caller can tell.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext, suppress
from errno import EMFILE, ENFILE
from functools import cache, lru_cache, partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ..._version import __version__
from ...errors import PeerError, PeerLost, PeerTimeout, PeerUnreachable
from ...time_limit import Extendable, within
from .caller import current_caller
from .connection import Arrived, Broken, Connection, Places, Reply, TooLarge, max_connections
from .loop import Lockstep, step
from .network import (
    AUTHENTICATION_REQUIRED,
    Network,
    Origin,
    ProxyRefused,
    basic_credentials,
    connect_through,
)

__all__ = ["HttpClient", "Reply", "max_connections"]

CONNECT_TIMEOUT_S = 10.0
"""A listening server accepts within milliseconds; ten seconds are enough for distant regions."""

KEEP_ALIVE_S = 15.0
"""Idle time after which the client closes a connection. Our servers wait longer (75 s), so they
never close one that a request is about to use."""

ADDRESS_TIMEOUT_S = 2.0
"""Time for each address of a host but the last: some addresses cannot be reached."""

RESOLVED_S = 10.0
"""A host's addresses are cached for this long, so that thousands of connections at once need only
one look-up."""

MAX_REPLY_MB = 256.0
"""Largest reply in megabytes: a small compressed body can fill the memory."""

PORTS = {"http": 80, "https": 443}

UNQUOTED = "/%:@!$&'()*+,;=~-._[]"
"""Characters of a path that are not percent-encoded."""

UNKNOWN_AUTHORITY = frozenset(range(18, 22))
"""OpenSSL's codes of certificates whose authority is not known here."""

NAME_AUTHORITY = ": if your network has an authority of its own, name its file in ca_file"

ROOM_FOR_ALL = nullcontext()

USER_AGENT = f"rollout_kit/{__version__}"


class HttpClient:
    """Connections to any number of hosts, at most `limit` in all and `limit_per_host` to one host;
    0 = unlimited. A reply has at most `max_reply_mb` megabytes. `network` is the way to hosts."""

    def __init__(
        self,
        limit: int = 0,
        limit_per_host: int = 0,
        max_reply_mb: float = MAX_REPLY_MB,
        network: Network | None = None,
    ) -> None:
        self.max_reply_mb, self.limit_per_host = max_reply_mb, limit_per_host
        self.network = network or plain_network()
        self._room = asyncio.Semaphore(limit) if limit else None
        self._hosts: dict[Origin, _Host] = {}
        self.places = Places(max_connections())
        self.replies = Lockstep[Reply]()

    def post(
        self,
        url: str,
        raw: bytes | list[bytes | memoryview],
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600,
        arrived: Arrived | None = None,
        limits: list[Extendable] | None = None,
    ) -> Coroutine[Any, Any, Reply]:
        """Send a POST; `raw` may be in pieces. `arrived` receives the pieces of an event stream as
        they arrive; `timeout_s` then limits the time before each of them. `limits` are extended
        when the server says so."""
        return self._send("POST", url, raw, headers, timeout_s, arrived, limits)

    def get(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 600
    ) -> Coroutine[Any, Any, Reply]:
        return self._send("GET", url, None, headers, timeout_s)

    async def _send(
        self,
        method: str,
        url: str,
        raw: bytes | list[bytes | memoryview] | None,
        headers: Mapping[str, str] | None,
        timeout_s: float,
        arrived: Arrived | None = None,
        limits: list[Extendable] | None = None,
    ) -> Reply:
        try:
            origin, head = _parts(method, url)
            host = self._hosts.get(origin)
            if host is None:
                host = self._hosts[origin] = _Host(origin, self)
            request = _request(host.forward(head) if host.forwards else head, headers, raw)
        except ValueError as error:
            raise PeerError(f"{url}: {error}", retryable=False) from None
        await step
        limit = within(timeout_s, limits)
        if arrived:
            arrived = _renew_at_each(limit, arrived)
        try:
            with limit:
                if self._room is None and host.room is None:
                    return await host.ask(request, arrived, limits)
                async with self._room or ROOM_FOR_ALL, host.room or ROOM_FOR_ALL:
                    return await host.ask(request, arrived, limits)
        except TimeoutError as error:
            what = "fell silent for" if limit.was_renewed else "did not answer within"
            seconds = round(timeout_s, 1 if timeout_s > 1 else 3)  # the rest of a limit is 3.9987
            raise PeerTimeout(f"{url} {what} {seconds:g} s{host.way}") from error
        except OSError as error:
            reason, may_pass = _reason(error), not _is_for_good(error)
            raise PeerUnreachable(
                f"cannot connect to {url}{host.way}: {reason}", retryable=may_pass
            ) from error
        except TooLarge:
            raise PeerError(
                f"{url} answered with more than max_reply_mb={self.max_reply_mb:g} (megabytes,"
                " decompressed)",
                status=502,
                retryable=False,
            ) from None
        except Broken as error:
            raise PeerLost(f"{url} broke off: {error}") from error

    async def close(self) -> None:
        """End every connection; requests in flight raise PeerLost."""
        for host in self._hosts.values():
            host.close()
        await asyncio.sleep(0)  # the loop closes the sockets


class _Host:
    """The connections to one origin."""

    def __init__(self, origin: Origin, client: HttpClient) -> None:
        self._network = client.network
        self._proxy = proxy = self._network.proxy_for(origin)
        self._near = proxy or origin
        """What connections are made to."""
        self.forwards = proxy is not None and not (origin.is_encrypted or proxy.is_socks)
        """Whether requests go to the proxy, which passes them on."""
        self.way = f" through the proxy {proxy}" if proxy else ""
        """What errors say about the way."""
        self._max_bytes, self._places = int(client.max_reply_mb * 1e6), client.places
        self._connection = partial(Connection, client.replies)
        self.origin = origin
        self.room = asyncio.Semaphore(limit) if (limit := client.limit_per_host) else None
        self._idle: deque[Connection] = deque()  # least recently used first
        self._places.idle.append(self._idle)
        self._busy: set[Connection] = set()
        self._resolving: asyncio.Future[list[str]] | None = None
        self._resolved_at, self._good = -RESOLVED_S, ""
        self._sweep: asyncio.TimerHandle | None = None

    def forward(self, head: str) -> str:
        """The first lines of a request as the proxy needs them."""
        assert self._proxy
        method, _, rest = head.partition(" ")
        return f"{method} http://{self.origin.address}{rest}{self._proxy.authorization}"

    async def ask(
        self,
        request: list[bytes | memoryview],
        arrived: Arrived | None = None,
        limits: list[Extendable] | None = None,
    ) -> Reply:
        """Send a request; OSError if no connection can be made, Broken if one ends too early."""
        while (connection := self._take_idle() or await self._open()) is None:
            await self._places.wait()
        self._busy.add(connection)
        try:
            if (caller := current_caller()) is not None:
                await caller.check()
            reply = await connection.ask(request, arrived, self._max_bytes, limits)
            if self._proxy and self.forwards and reply.status == AUTHENTICATION_REQUIRED:
                raise self._proxy.refusal(reply.status, "", self.origin)
            return reply
        except BaseException:
            connection.end("the request was cancelled")
            raise
        finally:
            self._busy.discard(connection)
            if connection.is_open:
                self._keep(connection)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return None

    async def _open(self) -> Connection | None:
        """A new connection; None if there is no place for it."""
        if not self._places.take():
            self._places.make_room()
            return None
        try:
            connection = await self._connect()
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in (EMFILE, ENFILE):
                if self._places.shrink():
                    return None
            else:
                self._places.give_back()
            raise
        connection.when_lost(self._places.give_back)
        return connection

    def _keep(self, connection: Connection) -> None:
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        self._places.wake()
        if self._sweep is None:
            self._sweep = connection.loop.call_later(KEEP_ALIVE_S, self._drop_old)

    def _drop_old(self) -> None:
        """End connections that were idle for KEEP_ALIVE_S."""
        loop = asyncio.get_running_loop()
        idle, self._sweep = self._idle, None
        while idle and (
            not idle[0].is_open or loop.time() - idle[0].idle_since >= KEEP_ALIVE_S - 0.1
        ):
            idle.popleft().end("it was idle")
        if idle:
            due = idle[0].idle_since + KEEP_ALIVE_S
            self._sweep = loop.call_at(due, self._drop_old)

    async def _connect(self) -> Connection:
        """Connect to the first address that accepts, starting with the one that accepted last
        time."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                addresses = await self._addresses()
                for address in addresses[:-1]:
                    with suppress(OSError):
                        async with asyncio.timeout(ADDRESS_TIMEOUT_S):
                            return await self._connect_to(address)
                return await self._connect_to(addresses[-1])
        except TimeoutError:
            raise OSError(0, f"no connection within {CONNECT_TIMEOUT_S:g} s") from None

    async def _connect_to(self, address: str) -> Connection:
        host, port = self.origin.host, self.origin.port
        loop = asyncio.get_running_loop()
        if self._proxy is not None:
            connection = await connect_through(
                self._proxy, address, self.origin, self._network, self._connection
            )
        elif self.origin.is_encrypted:
            _, connection = await loop.create_connection(
                self._connection, address, port, ssl=self._network.tls, server_hostname=host
            )
        else:
            _, connection = await loop.create_connection(self._connection, address, port)
        self._good = address
        return connection

    async def _addresses(self) -> list[str]:
        """The host's addresses; concurrent callers share one look-up."""
        loop = asyncio.get_running_loop()
        is_old = loop.time() - self._resolved_at >= RESOLVED_S
        if self._resolving is None or (self._resolving.done() and is_old):
            self._resolving = asyncio.ensure_future(self._resolve())
        found = await asyncio.shield(self._resolving)
        return sorted(found, key=lambda address: address != self._good)

    async def _resolve(self) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                self._near.host, self._near.port, type=socket.SOCK_STREAM
            )
            self._resolved_at = loop.time()
            return list(dict.fromkeys(str(address[0]) for *_, address in found))
        except UnicodeError:
            raise OSError(0, "this is not a valid host name") from None

    def close(self) -> None:
        if self._sweep:
            self._sweep.cancel()
        for connection in [*self._idle, *self._busy]:
            connection.end("the client was closed")
        self._idle.clear()


@lru_cache(maxsize=4096)
def _parts(method: str, url: str) -> tuple[Origin, str]:
    """The origin, and the first lines of the request; ValueError if `url` is not a URL."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("this is not an http:// or https:// URL")
    port = parts.port or PORTS[parts.scheme]
    origin = Origin(parts.hostname, port, parts.scheme == "https")
    target = quote(parts.path or "/", safe=UNQUOTED)
    if parts.query:
        target += "?" + quote(parts.query, safe=UNQUOTED + "?")
    _, _, authority = parts.netloc.rpartition("@")
    head = f"{method} {target} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: {USER_AGENT}\r\n"
    if parts.username is not None:
        who = basic_credentials(unquote(parts.username), unquote(parts.password or ""))
        head += f"authorization: {who}\r\n"
    return origin, head


def _request(
    head: str, headers: Mapping[str, str] | None, raw: bytes | list[bytes | memoryview] | None
) -> list[bytes | memoryview]:
    """The request in pieces; ValueError if a header cannot be sent."""
    for name, value in (headers or {}).items():
        if not (value.isprintable() and value.isascii()) and not _is_sendable(value):
            raise ValueError(f"the header '{name}' contains a line break or is not Latin-1")
        head += f"{name}: {value}\r\n"
    if raw is None:
        return [f"{head}\r\n".encode("latin-1")]
    pieces = raw if isinstance(raw, list) else [raw]
    size = sum(map(len, pieces))
    length = f"content-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    return [(head + length).encode("latin-1"), *pieces]


def _renew_at_each(limit: within, arrived: Arrived) -> Arrived:
    def take(piece: bytes) -> None:
        limit.renew()
        arrived(piece)

    return take


def _is_sendable(value: str) -> bool:
    return not any(each in "\r\n\0" or ord(each) > 255 for each in value)


@cache
def plain_network() -> Network:
    """The direct way, which clients share: to read the system's authorities takes 20 ms."""
    return Network()


def _speaks_no_tls(error: OSError) -> bool:
    return isinstance(error, ssl.SSLError) and error.reason in (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
    )


def _is_for_good(error: OSError) -> bool:
    """Whether retrying cannot help because the URL or the certificate is wrong."""
    if isinstance(error, ProxyRefused):
        return not error.may_pass
    return _speaks_no_tls(error) or isinstance(error, ssl.SSLCertVerificationError)


def _reason(error: OSError) -> str:
    if _speaks_no_tls(error):
        return "the server does not speak TLS: is it an http:// URL?"
    if isinstance(error, ssl.SSLCertVerificationError):
        what = NAME_AUTHORITY if error.verify_code in UNKNOWN_AUTHORITY else ""
        return f"its certificate is refused ({error.verify_message}){what}"
    if isinstance(error, ssl.SSLError | socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)  # each event loop words the message differently
