"""The seam between servers: `peers.call(server, path, body, returns)`.

Whether the peer is in this process or behind HTTP is its transport's business. A request is always
handed over as JSON bytes, so neither side can change the other's objects; a reply belongs to the
caller.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol

import orjson
from pydantic import ValidationError

from ..errors import (
    PeerError,
    PeerTimeout,
    RolloutError,
    from_wire,
    suggest,
    validation_summary,
)
from ..session import HEADER, SPENT_HEADER, STATS_HEADER, Session, current_session
from ..time_limit import within
from ..types import JsonObject
from .cassette import Cassette
from .http import HttpClient, Reply
from .retry import RECONNECT, retry
from .wire import RESERVED, Answers, decode, encode

LONG_AGO = "Thu, 01 Jan 1970"
"""When a cookie expires that a server takes back."""


class Transport(Protocol):
    async def send(self, path: str, raw: bytes | None) -> Any:
        """The reply to one request: an object, or bytes that are JSON or text. None asks by GET."""
        ...


class Peers:
    """Other servers by instance name."""

    def __init__(
        self, transports: Mapping[str, Transport], cassette: Cassette | None = None
    ) -> None:
        self._transports = transports
        self._cassette = cassette
        self._descriptions: dict[str, JsonObject] = {}

    async def call(self, server: str, path: str, body: Any, returns: Any = dict) -> Any:
        """POST `body` (a pydantic model or JSON) to a server; GET when it is None.

        `returns` is a pydantic model, `dict` or `list` for JSON, or `str` for the reply's text.
        Raises the RolloutError that the server raised, or PeerError where there was no usable
        reply.
        """
        transport, raw = self.transport(server), None if body is None else encode(body)
        cassette = self._cassette
        if cassette is None or raw is None or not await self._is_taped(server, path):
            reply = await transport.send(path, raw)
        else:
            reply = await cassette.send(server, path, raw, transport.send)
        if isinstance(returns, type) and isinstance(reply, returns):
            return reply
        try:
            return decode(reply if isinstance(reply, bytes) else encode(reply), returns)
        except (TypeError, ValueError) as error:  # neither JSON, nor of the kind that was asked for
            reason = validation_summary(error) if isinstance(error, ValidationError) else error
            raise PeerError(
                f"{path} answered what cannot be read: {reason}",
                server=server,
                retryable=not isinstance(error, TypeError),  # garbage may pass; another type stays
            ) from error

    @property
    def is_taped(self) -> bool:
        """Whether calls to models are recorded or played back."""
        return self._cassette is not None

    async def _is_taped(self, server: str, path: str) -> bool:
        """Calls to models, and to tools that leave nothing behind which a verdict may depend on."""
        assert self._cassette is not None
        if server in self._cassette.models:
            return True
        about = await self.describe(server)
        return about.get("reverify") == "stateless" and path.removeprefix("/") not in RESERVED

    async def call_each(self, server: str, path: str) -> list[Any]:
        """GET from every worker of a server: what each of them answers."""
        transport = self.transport(server)
        workers = transport.workers() if isinstance(transport, Http) else [transport]
        alone = Peers({f"{number}": worker for number, worker in enumerate(workers)})
        return await asyncio.gather(*(alone.call(name, path, None) for name in alone._transports))

    async def describe(self, server: str) -> JsonObject:
        """What the server says of itself (see Service.describe); `{}` from a server of another
        kind."""
        if server not in self._descriptions:
            self._descriptions[server] = await self._ask_description(server)
        return self._descriptions[server]

    async def _ask_description(self, server: str) -> JsonObject:
        transport = self.transport(server)
        if isinstance(transport, Local):
            return transport.service.describe()
        try:
            health = await self.call(server, "/health", None)
        except RolloutError as error:
            if isinstance(error, PeerError) and error.retryable:
                raise
            return {}
        return health.get("server", {}) if isinstance(health, dict) else {}

    def transport(self, server: str) -> Transport:
        try:
            return self._transports[server]
        except KeyError:
            hint = suggest(server, self._transports)
            raise PeerError(
                f"no server is called '{server}'{hint}", retryable=False, status=404
            ) from None


class Local:
    """A server in this process. `round_trip` sends replies through JSON too, as the tests do."""

    def __init__(
        self, service: Answers, *, timeout_s: float | None = None, round_trip: bool = False
    ) -> None:
        self.service = service
        self._timeout_s = timeout_s
        self._round_trip = round_trip

    async def send(self, path: str, raw: bytes | None) -> Any:
        try:
            with within(self._timeout_s):
                reply = await self.service.answer(path, raw or b"")
        except TimeoutError:
            message = f"{path} did not answer within {self._timeout_s:g} s"
            raise PeerTimeout(message, server=self.service.name) from None
        return encode(reply) if self._round_trip else reply


class Http:
    """A server behind one URL per worker; a session always goes to the same one. `headers` go with
    every request."""

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        client: HttpClient,
        timeout_s: float = 600,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._urls = [url.rstrip("/") for url in urls]
        self._client = client
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})

    async def send(self, path: str, raw: bytes | None) -> bytes:
        session = current_session()
        url = self._url(session) + path
        try:
            reply = await self._reach(url, raw, {**self._headers, **_headers(session)})
        except PeerError as error:
            error.server = self._name
            raise
        if session:
            _keep_cookies(session, reply)
            if spent := reply.headers.get(SPENT_HEADER):
                session.spent.add_header(spent)
            if stats := reply.headers.get(STATS_HEADER):
                session.add_stats_header(stats)
        if reply.status >= 400:
            raise self._refusal(reply)
        return reply.raw

    def workers(self) -> list["Http"]:
        """Each alone."""
        return [
            Http(self._name, [url], self._client, self._timeout_s, self._headers)
            for url in self._urls
        ]

    def _url(self, session: Session | None) -> str:
        if session is None or len(self._urls) == 1:
            return self._urls[0]
        return self._urls[zlib.crc32(session.id.encode()) % len(self._urls)]

    async def _reach(self, url: str, raw: bytes | None, headers: dict[str, str]) -> Reply:
        """Send the request once; repeat it only while nothing listens at the URL."""

        def send() -> Awaitable[Reply]:
            if raw is None:
                return self._client.get(url, headers=headers, timeout_s=self._timeout_s)
            return self._client.post(url, raw, headers=headers, timeout_s=self._timeout_s)

        return await retry(send, RECONNECT)

    def _refusal(self, reply: Reply) -> RolloutError:
        text = reply.text()
        try:
            payload = orjson.loads(reply.raw)
        except orjson.JSONDecodeError:
            payload = None
        return from_wire(self._name, reply.status, payload, text)


def _headers(session: Session | None) -> dict[str, str]:
    if session is None:
        return {}
    headers = {HEADER: session.id}
    if session.cookies:
        headers["cookie"] = "; ".join(f"{name}={value}" for name, value in session.cookies.items())
    return headers


def _keep_cookies(session: Session, reply: Reply) -> None:
    for header in reply.headers.getall("set-cookie"):
        try:
            for name, morsel in SimpleCookie(header).items():
                if morsel["max-age"] == "0" or morsel["expires"].startswith(LONG_AGO):
                    session.cookies.pop(name, None)  # how a server takes one back
                else:
                    session.cookies[name] = morsel.coded_value
        except CookieError:
            continue  # a cookie that nobody can read is one that nobody set
