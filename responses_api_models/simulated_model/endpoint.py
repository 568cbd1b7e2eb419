"""The model's own HTTP server: an OpenAI-compatible endpoint and a model server for peers.

A request with a session comes directly from a peer, so errors have the form of this package. For
other requests they have OpenAI's form.
"""

import asyncio
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from rollout_kit.errors import PeerError, RolloutError, TaskError
from rollout_kit.serving.model import CHAT, RESPONSES
from rollout_kit.serving.transport import bare_http
from rollout_kit.serving.transport.access import TRUSTED, Access
from rollout_kit.serving.transport.http import USER_AGENT
from rollout_kit.serving.transport.peer_user import PEER_USER
from rollout_kit.serving.transport.wire import EventStream, encode
from rollout_kit.session import HEADER, SPENT_HEADER
from rollout_kit.types import JsonObject

from . import bodies
from .delivery import JSON, SSE, Delivery, deliver, deliver_refusal, starts_s
from .simulation import Decision, Refusal

if TYPE_CHECKING:
    from .app import SimulatedModel

SESSION = HEADER.encode()

AZURE = "/openai/"

OF_AZURE = re.compile(r"^/openai/(?:v1/|deployments/[^/]+/)?")
"""What stands in the paths of Azure OpenAI, the newer and the older ones, in place of /v1/."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of `/metrics`."""


class Endpoint:
    """Answers the requests of one socket."""

    def __init__(self, model: "SimulatedModel", access: Access, run_id: str = "") -> None:
        self._model = model
        self._access = access
        self._run_id = run_id
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(self, request: bare_http.BareRequest, connection: bare_http.BareConnection) -> None:
        if request.path.startswith(AZURE):
            request.path = OF_AZURE.sub("/v1/", request.path)
        scope: JsonObject = {
            "headers": request.headers,
            "method": request.method,
            "path": request.path,
            PEER_USER: connection.peer_user,
        }
        refusal = self._access.refusal(scope)
        if refusal is not None:
            status, message = refusal
            _reply(connection, *_refusal(PeerError(message, status=status, retryable=False)))
        elif request.method == "POST" and request.path in (RESPONSES, CHAT):
            Exchange(self._model, request, connection, self._loop).begin()
        elif request.method == "HEAD":
            connection.write(bare_http.head(405, JSON, length=0))
            connection.done()
        elif request.method == "GET" and request.path in ("/", "/health"):
            _reply(connection, 200, orjson.dumps(self._health(bool(scope[TRUSTED]))))
        else:
            task = self._loop.create_task(self._route(request, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _health(self, is_trusted: bool) -> JsonObject:
        answer: JsonObject = {"status": "ok", "run_id": self._run_id}
        if is_trusted:
            load = {"in_flight": self._model.stats.in_flight, **self._model.load_figures()}
            answer |= {"server": self._model.describe(), "load": load}
        return answer

    async def _route(
        self, request: bare_http.BareRequest, connection: bare_http.BareConnection
    ) -> None:
        """Answer any other route through the service."""
        route = self._model.routes.get(request.path)
        try:
            if route and route.method != request.method:
                raise RolloutError(f"{request.path} takes {route.method}", status=405)
            reply = await self._model.answer(request.path, request.body)
        except RolloutError as error:
            _reply(connection, *_refusal(error))
        else:
            kind = SSE if isinstance(reply, EventStream) else JSON
            _reply(connection, 200, encode(reply), TEXT if isinstance(reply, str) else kind)


def _refusal(error: RolloutError) -> tuple[int, bytes]:
    return error.status, orjson.dumps(error.to_wire())


def _reply(
    connection: bare_http.BareConnection, status: int, body: bytes, content_type: str = JSON
) -> None:
    connection.write(bare_http.head(status, content_type, length=len(body)) + body)
    connection.done()


class Exchange:
    """One simulated request, from its arrival to its last byte."""

    def __init__(
        self,
        model: "SimulatedModel",
        request: bare_http.BareRequest,
        connection: bare_http.BareConnection,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._model = model
        self._request = request
        self._connection = connection
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._began = loop.time()
        self._first_at = self._began
        self._fault = ""

    def begin(self) -> None:
        self._connection.when_lost = self._abandon
        self._model.stats.begin(self._request.path, self._began)
        try:
            decision = self._decide()
        except RolloutError as error:
            self._play(self._refuse(error))
            return
        self._fault = str(decision.fault.kind) if decision.fault else ""
        if wait_s := starts_s(decision):
            self._timer = self._loop.call_at(self._began + wait_s, self._deliver, decision)
        else:
            self._deliver(decision)

    def _decide(self) -> Decision:
        try:
            body = orjson.loads(self._request.body)
        except orjson.JSONDecodeError as error:
            raise TaskError(f"the body is not JSON: {error}", status=400) from None
        if not isinstance(body, dict):
            raise TaskError("the body must be a JSON object", status=400)
        in_flight = self._model.stats.in_flight
        return self._model.simulation.decide(self._request.path, body, self._began, in_flight)

    def _deliver(self, decision: Decision) -> None:
        self._first_at = self._loop.time()
        name = self._model.model_name()
        if decision.refusal and self._is_peer:
            if decision.refusal.is_overflow:
                body = orjson.dumps(bodies.overflow_response(decision.asked, name))
                self._play(Delivery("200", [bare_http.head(200, JSON, length=len(body)) + body]))
            else:
                self._play(self._refuse(decision.refusal.error()))
            return
        if decision.is_answered:
            self._model.count(decision, self._first_at - self._began, decision.end_s)
            if self._is_peer:
                told = self._model.spent_on(decision).to_header()
                decision = replace(decision, headers=(*decision.headers, (SPENT_HEADER, told)))
        self._play(deliver(decision, name, in_full=not (self._is_peer or self._is_ours)))

    @property
    def _is_peer(self) -> bool:
        return any(name == SESSION for name, _ in self._request.headers)

    @property
    def _is_ours(self) -> bool:
        """Whether a model server of ours asks: its lines would grow by constant fields."""
        return (b"user-agent", USER_AGENT.encode()) in self._request.headers

    def _refuse(self, error: RolloutError) -> Delivery:
        if not self._is_peer:
            refusal = Refusal(error.status, error.message, "BadRequestError", error.status)
            return deliver_refusal(refusal)
        error.server = error.server or self._model.name
        status, body = _refusal(error)
        return Delivery(str(status), [bare_http.head(status, JSON, length=len(body)) + body])

    def _play(self, delivery: Delivery, written: int = 0) -> None:
        """Write the pieces that are due; set a timer for the next one."""
        pieces = delivery.pieces
        if not delivery.over_s:
            self._connection.write(b"".join(pieces))
        elif written < len(pieces):
            self._connection.write(pieces[written])
            written += 1
            due = self._first_at + delivery.over_s * written / len(pieces)
            self._timer = self._loop.call_at(due, self._play, delivery, written)
            return
        if delivery.then == "hang":
            return
        self._model.stats.end(self._loop.time(), delivery.outcome, self._fault)
        match delivery.then:
            case "close":
                self._connection.close()
            case "reset":
                self._connection.reset()
            case _:
                self._connection.done()

    def _abandon(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._model.stats.end(self._loop.time(), "abandoned", self._fault)
