"""The HTTP side of the gateway: one port for all rollouts, and an address for each.

`/r/<token>/v1/…` answers while its rollout runs, and reaches nothing but the model of the run. The
token is the key to the address, and nothing else is asked for.
"""

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import orjson

from ...errors import ConfigError
from ...session import fresh_id
from ..model import COUNT, COUNT_MESSAGES, MODELS
from ..transport.bare_http import (
    LAST_CHUNK,
    BareConnection,
    BareRequest,
    BodyRoom,
    chunk,
    head,
    listening,
)
from .dialects import DIALECTS, dialect_of, encode_error
from .mcp_door import McpDoor, SessionTools
from .recorder import Answer, CallRefused, Recorder

PREFIX, MCP_PATH = "/r/", "/mcp"

MAX_REQUEST = 64 << 20
"""Bytes of one request of a program."""

MAX_WAITING = 4 * MAX_REQUEST
"""Bytes of all requests of one rollout that wait for an answer."""

STRANGERS = 8 << 20
"""The same of all requests to addresses that there are not."""

JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(slots=True)
class OpenAddress:
    """What answers at an address, and the calls that are being answered there."""

    recorder: Recorder
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    room: BodyRoom = field(default_factory=lambda: BodyRoom(MAX_WAITING))
    tools: SessionTools | None = None
    """What programs call over MCP."""


class Gateway:
    """Listens on `host`; port 0 is one that is free. `with_mcp`: addresses may have tools."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, with_mcp: bool = False) -> None:
        self._host, self._port = host, port
        self._mcp = McpDoor("gateway", self._find_tools) if with_mcp else None
        self._open: dict[str, OpenAddress] = {}
        self._strangers = BodyRoom(STRANGERS)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """ConfigError if the port cannot be used, or MCP's SDK is missing."""
        if self._mcp is not None:
            await self._mcp.start(MAX_REQUEST)
            self._stack.push_async_callback(self._mcp.stop)
        sock = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._host, self._port))
            sock.listen(1024)
        except OSError as error:
            sock.close()
            where = f"{self._host}:{self._port}"
            raise ConfigError(f"the gateway cannot listen at {where}: {error.strerror}") from None
        sock.setblocking(False)
        self._port = sock.getsockname()[1]
        server = listening(self._answer, sock, MAX_REQUEST, self._find_room)
        await self._stack.enter_async_context(server)

    async def stop(self) -> None:
        for token in list(self._open):
            await self.close(token)
        await self._stack.aclose()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self._host, self._port

    def open(self, recorder: Recorder, tools: SessionTools | None = None) -> str:
        """The token of a new address, whose calls `recorder` answers."""
        token = fresh_id()
        self._open[token] = OpenAddress(recorder, tools=tools)
        return token

    def _find_tools(self, token: str) -> SessionTools | None:
        found = self._open.get(token)
        return found.tools if found else None

    async def close(self, token: str) -> None:
        """Nothing is answered there any more; calls that are being answered are given up."""
        if (closed := self._open.pop(token, None)) is None:
            return
        for task in closed.tasks:
            task.cancel()
        await asyncio.gather(*closed.tasks, return_exceptions=True)

    def _find(self, path: str) -> OpenAddress | None:
        token = path.removeprefix(PREFIX).partition("/")[0]
        return self._open.get(token) if path.startswith(PREFIX) else None

    def _find_room(self, path: str) -> BodyRoom:
        found = self._find(path)
        return found.room if found else self._strangers

    def _answer(self, request: BareRequest, connection: BareConnection) -> None:
        path = "/" + request.path.removeprefix(PREFIX).partition("/")[2]
        if (found := self._find(request.path)) is None:
            message = "there is no such address, or its rollout has ended"
            _reply(connection, 404, encode_error(dialect_of(path), 404, message))
            return
        if path == MCP_PATH and found.tools is not None and self._mcp is not None:
            token = request.path.removeprefix(PREFIX).partition("/")[0]
            answering = self._mcp.answer(token, request, connection)
        else:
            answering = ProgramCall(found.recorder, request, connection, path).run()
        task = asyncio.get_running_loop().create_task(answering)
        found.tasks.add(task)
        task.add_done_callback(found.tasks.discard)


class ProgramCall:
    """One request of a program, from its arrival to the last byte of its reply. If the program
    leaves, the model's answer is still recorded, and kept for the same request."""

    def __init__(
        self, recorder: Recorder, request: BareRequest, connection: BareConnection, path: str
    ) -> None:
        self._recorder, self._request, self._connection = recorder, request, connection
        self._path = path
        self._is_lost = False
        connection.when_lost = self._lose

    def _lose(self) -> None:
        self._is_lost = True

    async def run(self) -> None:
        try:
            await self._run()
        except CallRefused as refusal:
            error = encode_error(
                dialect_of(self._path), refusal.status, refusal.message, refusal.code
            )
            self._reply(refusal.status, error)
        except asyncio.CancelledError:
            self._connection.close()
            raise

    async def _run(self) -> None:
        path, method = self._path, self._request.method
        dialect = DIALECTS.get(path)
        if dialect is not None and method == "POST":
            answer = await self._recorder.answer(dialect, self._request.body)
            if answer.request.get("stream"):
                events = dialect.list_events(answer.reply, answer.request)
                await self._stream(answer, events, dialect.num_held(answer.request))
            else:
                await self._recorder.store(answer)
                self._reply(200, orjson.dumps(answer.reply))
            if self._is_lost:
                self._recorder.give_back(answer)
        elif method == "POST" and path in (COUNT, COUNT_MESSAGES):
            self._reply(200, await self._recorder.ask_other(path, self._request.body))
        elif method == "GET" and (path == MODELS or path.startswith(f"{MODELS}/")):
            self._reply(200, await self._recorder.ask_other(MODELS, None))
        elif method in ("GET", "HEAD") and path in ("/", "/health"):
            self._reply(200, b"{}")
        else:
            raise CallRefused(404, f"there is no {method} {path} here")

    async def _stream(self, answer: Answer, events: list[bytes], num_held: int) -> None:
        """Send all events but the last ones at once, those when the reply is on disk."""
        begun = b"".join(events[:-num_held])
        self._connection.write(head(200, EVENTS, (("cache-control", "no-cache"),)) + chunk(begun))
        await self._recorder.store(answer)
        if not self._is_lost:
            self._connection.write(chunk(b"".join(events[-num_held:])) + LAST_CHUNK)
            self._connection.done()

    def _reply(self, status: int, body: bytes) -> None:
        if not self._is_lost:
            _reply(self._connection, status, b"" if self._request.method == "HEAD" else body)


def _reply(connection: BareConnection, status: int, body: bytes) -> None:
    connection.write(head(status, JSON, length=len(body)) + body)
    connection.done()


def openai_url(address: tuple[str, int], token: str) -> str:
    """The base URL for OpenAI's clients; Anthropic's take it without /v1."""
    host, port = address
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PREFIX}{token}/v1"
