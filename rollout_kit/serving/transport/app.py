"""A service as an ASGI app, and an app on a socket.

The routes pass raw JSON to the service; only its `handle` reads it.
"""

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import orjson
import uvicorn
from starlette import routing
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...errors import RolloutError
from ...session import (
    CLAIM_HEADER,
    HEADER,
    SPENT_HEADER,
    STATS_HEADER,
    TICKET_HEADER,
    TIER_HEADER,
    TURNS_HEADER,
    BatchTicket,
    Session,
    TurnLog,
    entered,
)
from ...types import JsonObject
from .access import TRUSTED, Accepted, Access, guard
from .caller import HEADER as DEADLINE_HEADER
from .caller import HELD_HEADER, Caller, begin_work_for, is_hung_up, read_deadline
from .encoding import NotJson
from .peer_user import PEER_USER, PeerUser
from .wire import EVENT_END, Answers, EventStream, Route, encode

log = logging.getLogger(__name__)

COOKIE = "rollout_session"
"""Cookie with the session's id, for callers that only know cookies, such as NeMo Gym's agents."""

SERVER_KEEP_ALIVE_S = 75
"""Longer than our clients keep an idle connection, so that the server never closes one that a
client is about to use."""

GONE = 499
"""Status for a caller that has left; only logs see it."""

GYM_ROLLOUT = re.compile(r"/ng-rollout/[^/]+(?:/training-token-capture)?(/.*)", re.S)
"""A path of NeMo Gym 0.7's agents: the rollout, and the route that is meant."""

CONNECTION = "rollout_kit.connection"
"""Key of the ASGI scope: the connection of the request."""

KEPT_BYTES = 128 << 20
"""Two hundred conversations of 320 turns."""

STOP_S = 2
"""Time for requests in flight when a server stops."""


def build_app(
    service: Answers,
    routes: Iterable[Route],
    run_id: str = "",
    base: type[Starlette] = Starlette,
) -> Starlette:
    """The app with every route of the service, `/health` and `/`. By `run_id` in `/health` a parent
    recognizes the server that it has started."""

    class App(base):
        """Calls the endpoint of a service's route at once. The usual middleware, which handles
        errors that no endpoint raises, and the routing take a sixth of a server's time."""

        @cached_property
        def endpoints(self) -> dict[tuple[str, str], _Endpoint]:
            """Those that routing would find, by method and path."""
            found: dict[tuple[str, str], Any] = {}
            for route in self.router.routes:
                for method in getattr(route, "methods", None) or ():
                    found.setdefault((method, route.path), route.app)  # type: ignore[attr-defined]
            return {key: each for key, each in found.items() if isinstance(each, _Endpoint)}

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            is_plain = scope["type"] == "http" and not self.user_middleware
            which = (scope["method"], scope["path"]) if is_plain else ("", "")
            endpoint = self.endpoints.get(which)
            if endpoint is None and (found := GYM_ROLLOUT.match(which[1])):
                scope = {**scope, "path": found[1], "raw_path": found[1].encode()}
                endpoint = self.endpoints.get((which[0], found[1]))
            await (endpoint or super().__call__)(scope, receive, send)

    app = App()
    traffic = _Traffic()

    async def health(request: Request) -> Response:
        answer: JsonObject = {"status": "ok", "run_id": run_id}
        if request.scope.get(TRUSTED):
            load = {"in_flight": traffic.in_flight, **service.load_figures()}
            answer |= {"server": service.describe(), "load": load}
        return _json(orjson.dumps(answer))

    app.add_route("/", health)
    app.add_route("/health", health)
    for route in routes:
        endpoint = _Endpoint(service, route.path, traffic)
        app.router.routes.append(routing.Route(route.path, endpoint, methods=[route.method]))
    return app


@dataclass(slots=True)
class _Traffic:
    in_flight: int = 0
    known: "_KnownSessions" = field(default_factory=lambda: _KnownSessions())


class _KnownSessions:
    """What servers of this process keep of the requests of a session, for its next request. At
    most KEPT_BYTES in all: what was not used for longest goes first, and costs only time."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, dict[str, Any]]] = {}  # least recently used first
        self._size = 0

    def take(self, session: Session) -> None:
        size, session.conversations = self._kept.pop(session.id, (0, session.conversations))
        self._size -= size

    def keep(self, session: Session) -> None:
        if not session.conversations:
            return
        size = sum(each.size for each in session.conversations.values())
        self._size += size - self._kept.pop(session.id, (0, {}))[0]
        self._kept[session.id] = size, session.conversations
        while self._size > KEPT_BYTES:
            self._size -= self._kept.pop(next(iter(self._kept)))[0]


class TurnWriter:
    """Writes the turns of a rollout in front of the reply, as an event stream that begins with the
    first of them. So turns need no second connection, and a reply without turns stays as it is.

    The request has the stored turns in front of its body; a header names their length.
    """

    def __init__(self, send: Send) -> None:
        self.has_begun = False
        self._send = send

    def take_stored(self, raw: bytes, length: int) -> tuple[TurnLog, bytes]:
        """The log of the turns in front of a body, and the body."""
        return TurnLog(orjson.loads(raw[:length]), self._report), raw[length:]

    async def _report(self, turn: JsonObject) -> None:
        if not self.has_begun:
            self.has_begun = True
            headers = [(b"content-type", b"text/event-stream")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write({"turn": turn}, more_body=True)

    async def end_with(self, response: Response) -> None:
        """Write the last event: the reply with its status and headers."""
        pairs = [(name.decode(), value.decode()) for name, value in response.raw_headers]
        body = orjson.Fragment(bytes(response.body))
        event = {"status": response.status_code, "headers": pairs, "reply": body}
        await self._write(event, more_body=False)

    async def _write(self, event: JsonObject, *, more_body: bool) -> None:
        raw = b"data: " + orjson.dumps(event) + EVENT_END
        message = {"type": "http.response.body", "body": raw, "more_body": more_body}
        await self._send(message)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The ASGI app of one route."""

    service: Answers
    path: str
    traffic: _Traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, turns = Request(scope, receive), TurnWriter(send)
        session, is_new = _session_of(request, self.path)
        before = dict(session.cookies) if session else {}
        self.traffic.in_flight += 1
        try:
            if session:
                self.traffic.known.take(session)
            response = await self._answer(request, session, turns)
        finally:
            self.traffic.in_flight -= 1
        if session:
            self.traffic.known.keep(session)
            # some callers keep only the cookies of the latest reply
            if response.status_code < 400 if is_new else COOKIE in request.cookies:
                response.set_cookie(COOKIE, session.id, httponly=True)
            if session.spent.calls:
                response.headers[SPENT_HEADER] = session.spent.to_header()
            if session.stats:
                is_ours = HEADER in request.headers
                response.headers[STATS_HEADER] = session.stats_to_header(has_turns=is_ours)
            for name, value in session.cookies.items():
                if before.get(name) != value:
                    response.headers.append("set-cookie", f"{name}={value}; Path=/")
        if turns.has_begun:
            await turns.end_with(response)
        else:
            await response(scope, receive, send)

    async def _answer(
        self, request: Request, session: Session | None, turns: TurnWriter
    ) -> Response:
        caller = None
        try:
            raw = await request.body()
            if session and (length := request.headers.get(TURNS_HEADER, "")).isdecimal():
                session.turn_log, raw = turns.take_stored(raw, int(length))
            with entered(session), _working_for(request, self.path) as caller:
                await caller.check()
                if session:
                    session.limits.append(caller)
                asked = self.service.answer if session else self.service.answer_client
                answer = await asked(self.path, raw)
                return _reply(answer, self.service.reply_headers(answer))
        except NotJson as error:
            return _refusal(error.refuse(self.service.name, self.path))
        except ClientDisconnect:
            return Response(status_code=GONE)
        except asyncio.CancelledError:
            if caller is None or not caller.is_gone:
                raise
            return Response(status_code=GONE)
        except RolloutError as error:
            return _refusal(error)


@contextmanager
def _working_for(request: Request, path: str) -> Iterator[Caller]:
    """Context in which the task works for the caller: it is cancelled when the caller leaves.

    Closing a session goes on, because it releases what the session holds.
    """
    connection: _Connection | None = request.scope.get(CONNECTION)
    if connection is None or path == "/close_session":
        yield Caller(inf, lambda: False)
        return
    given = request.headers.get(DEADLINE_HEADER, "")
    tell = connection.tell_to_wait if given else None  # other clients may not know interim replies
    connection.caller = caller = Caller(read_deadline(given), connection.has_ended, tell)
    begin_work_for(caller)
    try:
        yield caller
    finally:
        caller.end()
        connection.caller = None


def _session_of(request: Request, path: str) -> tuple[Session | None, bool]:
    """The caller's session, and whether this request begins it."""
    cookies = {name: value for name, value in request.cookies.items() if name != COOKIE}
    known = request.headers.get(HEADER) or request.cookies.get(COOKIE)
    if known:
        tier, claim = (request.headers.get(name, "") for name in (TIER_HEADER, CLAIM_HEADER))
        session = Session(known, cookies, tier=tier, claim=claim)
        if ticket := request.headers.get(TICKET_HEADER):
            session.ticket = BatchTicket.from_header(ticket)
        return session, False
    return (Session(cookies=cookies), True) if path == "/seed_session" else (None, False)


def _reply(answer: Any, headers: Mapping[str, str]) -> Response:
    if isinstance(answer, EventStream):
        return Response(answer, headers=headers, media_type="text/event-stream")
    return Response(encode(answer), headers=headers, media_type="application/json")


def _json(raw: bytes) -> Response:
    return Response(raw, media_type="application/json")


def _refusal(error: RolloutError) -> Response:
    if error.traceback and error.__cause__ is not None:  # an exception of this server's code
        log.error("%s", error, exc_info=error.__cause__)
    status = error.status if 400 <= error.status <= 599 else 500
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = f"{error.retry_after_s:g}"
    return Response(
        orjson.dumps(error.to_wire()), status, headers=headers, media_type="application/json"
    )


class _Connection(HttpToolsProtocol):
    """A connection that tells the request in work when it ends. A task that waits for the end would
    cost each request some time; this costs nothing."""

    caller: Caller | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        self._descriptor, self._user = sock.fileno(), PeerUser(sock)

    def handle_websocket_upgrade(self) -> None:
        self.app_state = {**self.app_state, PEER_USER: self._user}
        super().handle_websocket_upgrade()

    def has_ended(self) -> bool:
        return self.transport.is_closing() or is_hung_up(self._descriptor)

    def tell_to_wait(self, seconds: float) -> None:
        """Tell the caller to wait so much longer, in an interim reply or an event of its stream."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.transport.is_closing():
            return
        if not cycle.response_started:
            head = f"HTTP/1.1 102 Processing\r\n{HELD_HEADER}: {seconds:g}\r\n\r\n"
            self.transport.write(head.encode())
        elif cycle.chunked_encoding:
            event = f'data: {{"held_s":{seconds:g}}}'.encode() + EVENT_END
            self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.caller is not None:
            self.caller.leave()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self.scope[PEER_USER] = self._user  # type: ignore[typeddict-unknown-key]


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which drains before it stops its servers."""
        yield


@asynccontextmanager
async def served(
    app: ASGIApp,
    sock: socket.socket,
    token: Accepted = "",
    control: Iterable[str] = (),
    opened: Iterable[str] = (),
) -> AsyncIterator[None]:
    """Context in which `app` answers on `sock` the requests that `Access` accepts."""
    server = _Server(
        uvicorn.Config(
            guard(app, Access.to(sock, token, control, opened)),
            http=_Connection,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            timeout_keep_alive=SERVER_KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if running.done():
            await running  # raises the reason why it could not serve
        yield
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await running
        sock.close()
