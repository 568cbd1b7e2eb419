"""How servers call each other: `peers.call(server, path, body, returns)`.

A transport reaches each peer, in this process or over HTTP. A request always crosses as JSON bytes,
so neither side can change the other's objects. The reply belongs to the caller.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from math import inf
from typing import Any, Protocol

import orjson
from pydantic import ValidationError

from ...errors import (
    PeerError,
    PeerTimeout,
    PeerUnreachable,
    RolloutError,
    from_wire,
    suggest,
    validation_summary,
)
from ...session import (
    CLAIM_HEADER,
    HEADER,
    SPENT_HEADER,
    STATS_HEADER,
    TICKET_HEADER,
    TIER_HEADER,
    TURNS_HEADER,
    Session,
    TurnLog,
    current_session,
)
from ...time_limit import time_left, within
from ...types import JsonObject
from .access import bearer
from .caller import HEADER as DEADLINE_HEADER
from .caller import deadline_header
from .cassette import Cassette
from .conversation import SplitRequest
from .encoding import NotJson, encode_reply
from .http import HttpClient, Reply
from .retry import RECONNECT, retry
from .wire import RESERVED, Answers, TurnReader, decode, encode, read_scores

UNNAMED = "a resources server in its own process reaches those that its keys name"

LEEWAY = 1.05
"""A server works a little longer than its caller waits, so that the caller's limit ends first."""

LONG_AGO = "Thu, 01 Jan 1970"
"""Expiry of a cookie that a server deletes."""


class Transport(Protocol):
    def send(
        self, path: str, raw: bytes | SplitRequest | None, turn_log: TurnLog | None = None
    ) -> Awaitable[Any]:
        """The reply to one request: an object, or bytes of JSON or text. With None, a GET."""
        ...


RowCheck = Callable[[JsonObject], Awaitable[None] | None]
"""Raises TaskError for a row that the server cannot take; the rest of the check is awaited."""


class Peers:
    """Other servers by instance name."""

    def __init__(
        self, transports: Mapping[str, Transport], cassette: Cassette | None = None
    ) -> None:
        self._transports = transports
        self._cassette = cassette
        self._descriptions: dict[str, JsonObject] = {}
        self._row_checks: dict[str, RowCheck | None] = {}

    def with_others(self, transports: Mapping[str, Transport]) -> "Peers":
        """The same, with other ways to some of the servers."""
        return Peers({**self._transports, **transports}, self._cassette)

    async def call(
        self,
        server: str,
        path: str,
        body: Any,
        returns: Any = dict,
        turn_log: TurnLog | None = None,
    ) -> Any:
        """POST `body` (a pydantic model or JSON) to a server; GET if it is None.

        `returns` is a pydantic model, `dict` or `list` for JSON, or `str` for the reply's text.
        `turn_log` is for an agent that reports its turns. Raises the RolloutError of the server, or
        PeerError if there is no usable reply.
        """
        transport = self._transports.get(server) or self.transport(server)
        raw, cassette = None if body is None else body, self._cassette
        if raw is not None and type(raw) is not SplitRequest:
            raw = encode(raw)
        if turn_log is not None:
            reply = await transport.send(path, raw, turn_log)
        elif cassette is None or raw is None or not await self._is_taped(server, path):
            reply = await transport.send(path, raw)
        else:
            reply = await cassette.send(server, path, bytes(raw), transport.send)
        if reply.__class__ is returns or (isinstance(returns, type) and isinstance(reply, returns)):
            return reply
        try:
            return decode(reply if isinstance(reply, bytes) else encode(reply), returns)
        except (TypeError, ValueError) as error:  # not JSON, or not of the type `returns`
            raise _unreadable(server, path, error) from error

    async def verify(self, server: str, request: JsonObject) -> JsonObject:
        """The fields that a verifier set for a row with its `response`; errors as for `call`."""
        reply = await self.transport(server).send("/verify", encode(request))
        try:
            return read_scores(request, reply)
        except (TypeError, ValueError) as error:
            raise _unreadable(server, "/verify", error) from error

    async def verify_group(self, server: str, raw: bytes) -> Any:
        """The reply to a group's request: as the server made it, or read from JSON."""
        reply = await self.transport(server).send("/verify_group", raw)
        try:
            return decode(reply, dict) if isinstance(reply, bytes) else reply
        except (TypeError, ValueError) as error:
            raise _unreadable(server, "/verify_group", error) from error

    def row_check(self, server: str) -> RowCheck | None:
        """What checks a row in place of `/seed_session`; None if the server needs a session.
        Without state, seeding and closing would only repeat the check."""
        if server not in self._row_checks:
            transport = self.transport(server)
            check = transport.row_check() if isinstance(transport, Local) else None
            self._row_checks[server] = check
        return self._row_checks[server]

    def move(self, server: str, urls: Sequence[str]) -> None:
        """A server that is reached by URL has moved."""
        if isinstance(transport := self._transports.get(server), Http):
            transport.move(urls)

    @property
    def is_taped(self) -> bool:
        """Whether calls to models are recorded or replayed."""
        return self._cassette is not None

    async def _is_taped(self, server: str, path: str) -> bool:
        """Whether a call is recorded: calls to models, and to tools that change no state."""
        assert self._cassette is not None
        if server in self._cassette.models:
            return True
        about = await self.describe(server)
        return about.get("reverify") == "stateless" and path.removeprefix("/") not in RESERVED

    async def call_each(self, server: str, path: str) -> list[Any]:
        """The replies of all workers of a server to a GET."""
        transport = self.transport(server)
        workers = transport.workers() if isinstance(transport, Http) else [transport]
        alone = Peers({f"{number}": worker for number, worker in enumerate(workers)})
        return await asyncio.gather(*(alone.call(name, path, None) for name in alone._transports))

    async def describe(self, server: str) -> JsonObject:
        """The server's description (see Service.describe); `{}` from a foreign server."""
        if server not in self._descriptions:
            self._descriptions[server] = await self._ask_description(server)
        return self._descriptions[server]

    def forget_descriptions(self) -> None:
        """Have servers describe themselves anew."""
        self._descriptions.clear()

    async def _ask_description(self, server: str) -> JsonObject:
        transport = self.transport(server)
        if isinstance(transport, Local):
            return transport.service.describe()
        try:
            health = await self.call(server, "/health", None)
        except RolloutError as error:
            if isinstance(error, PeerUnreachable):
                error.message += "; start that server, or correct its address"
            if isinstance(error, PeerError) and error.retryable:
                raise
            return {}
        return health.get("server", {}) if isinstance(health, dict) else {}

    def transport(self, server: str) -> Transport:
        try:
            return self._transports[server]
        except KeyError:
            hint = suggest(server, self._transports) or f"; {UNNAMED}"
            message = f"no server is called '{server}'{hint}"
            raise PeerError(message, retryable=False, status=404) from None


def _unreadable(server: str, path: str, error: Exception) -> RolloutError:
    if isinstance(error, NotJson):
        return error.refuse(server, path)
    reason = validation_summary(error) if isinstance(error, ValidationError) else error
    is_lasting = isinstance(error, TypeError)  # a wrong type will not change
    return PeerError(
        f"the reply of {path} cannot be read: {reason}", server=server, retryable=not is_lasting
    )


class Local:
    """A server in this process. With `round_trip`, replies cross as JSON too, for tests."""

    def __init__(
        self, service: Answers, *, timeout_s: float | None = None, round_trip: bool = False
    ) -> None:
        self.service = service
        self._timeout_s = timeout_s
        self._round_trip = round_trip

    def row_check(self) -> RowCheck | None:
        find = None if self._round_trip else getattr(self.service, "row_check", None)
        return find() if find else None

    def send(
        self, path: str, raw: Any, turn_log: TurnLog | None = None
    ) -> Coroutine[Any, Any, Any]:
        session, body = current_session(), raw
        if type(raw) is SplitRequest and (session is None or not self.service.takes_pieces):
            body = bytes(raw)
        if turn_log is not None and session is not None:
            session.turn_log = turn_log
        if self._timeout_s is None and not self._round_trip:
            return self.service.answer(path, b"" if body is None else body)
        return self._send(path, body)

    async def _send(self, path: str, raw: Any) -> Any:
        session = current_session()
        try:
            with within(self._timeout_s, session and session.limits):
                reply = await self.service.answer(path, b"" if raw is None else raw)
        except TimeoutError:
            message = f"{path} did not answer within {self._timeout_s:g} s"
            raise PeerTimeout(message, server=self.service.name) from None
        return encode_reply(reply, self.service.name, path) if self._round_trip else reply


def over_http(plan: JsonObject, client: HttpClient) -> dict[str, "Transport"]:
    """The servers of a plan that have URLs: name → how to reach it."""
    tokens, timeouts_s = plan["tokens"], plan["timeouts_s"]
    return {
        name: Http(
            name,
            urls,
            client,
            timeouts_s[name],
            bearer(tokens.get(name)),
            by_rollout=name in plan["by_rollout"],
        )
        for name, urls in plan["urls"].items()
    }


class Http:
    """A server with one URL per worker; all calls of a session go to the same worker, `by_rollout`
    those of all attempts at a rollout. `headers` are sent with every request."""

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        client: HttpClient,
        timeout_s: float = 600,
        headers: Mapping[str, str] | None = None,
        *,
        by_rollout: bool = False,
    ) -> None:
        self._name = name
        self._by_rollout = by_rollout
        self.urls = [url.rstrip("/") for url in urls]
        self._client = client
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})

    async def send(
        self, path: str, raw: bytes | SplitRequest | None, turn_log: TurnLog | None = None
    ) -> bytes:
        session = current_session()
        headers = {**self._headers, **_headers(session)}
        turns = None
        if turn_log is not None:
            turns = TurnReader(turn_log.report, session.limits if session else ())
            stored = orjson.dumps(turn_log.stored)
            headers[TURNS_HEADER], raw = str(len(stored)), stored + bytes(raw or b"")
        try:
            reply = await self._reach(path, session, raw, headers, turns)
        except PeerError as error:
            error.server = self._name
            raise
        reply = reply if turns is None else turns.reply or reply
        if session:
            _keep_cookies(session, reply)
            if spent := reply.headers.get(SPENT_HEADER):
                session.spent.add_header(spent)
            if stats := reply.headers.get(STATS_HEADER):
                session.add_stats_header(stats)
        if reply.status >= 400:
            raise self._refusal(reply)
        return reply.raw

    def move(self, urls: Sequence[str]) -> None:
        """From now on the server is at other URLs, as many as before."""
        self.urls[:] = [url.rstrip("/") for url in urls]

    def workers(self) -> list["Http"]:
        """One transport per worker."""
        return [
            Http(self._name, [url], self._client, self._timeout_s, self._headers)
            for url in self.urls
        ]

    def _url(self, session: Session | None) -> str:
        if session is None or len(self.urls) == 1:
            return self.urls[0]
        name = (self._by_rollout and session.origin) or session.id
        return self.urls[zlib.crc32(name.encode()) % len(self.urls)]

    async def _reach(
        self,
        path: str,
        session: Session | None,
        raw: bytes | SplitRequest | None,
        headers: dict[str, str],
        turns: TurnReader | None,
    ) -> Reply:
        """Send the request once; repeat it only while nothing listens at the URL, which may change
        meanwhile."""
        arrived, limits = turns.feed if turns else None, session and session.limits

        def send() -> Awaitable[Reply]:
            url = self._url(session) + path
            left = LEEWAY * time_left(session.limits) if session else inf
            headers[DEADLINE_HEADER] = deadline_header(min(self._timeout_s, left))
            if raw is None:
                return self._client.get(url, headers=headers, timeout_s=self._timeout_s)
            return self._client.post(
                url,
                raw.pieces if isinstance(raw, SplitRequest) else raw,
                headers=headers,
                timeout_s=self._timeout_s,
                arrived=arrived,
                limits=limits,
            )

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
    if session.ticket is not None:
        headers[TICKET_HEADER] = session.ticket.to_header()
    if session.tier:
        headers[TIER_HEADER] = session.tier
    if session.claim:
        headers[CLAIM_HEADER] = session.claim
    if session.cookies:
        headers["cookie"] = "; ".join(f"{name}={value}" for name, value in session.cookies.items())
    return headers


def _keep_cookies(session: Session, reply: Reply) -> None:
    for header in reply.headers.getall("set-cookie"):
        try:
            for name, morsel in SimpleCookie(header).items():
                if morsel["max-age"] == "0" or morsel["expires"].startswith(LONG_AGO):
                    session.cookies.pop(name, None)  # the server deletes it
                else:
                    session.cookies[name] = morsel.coded_value
        except CookieError:
            continue  # a malformed cookie is ignored
