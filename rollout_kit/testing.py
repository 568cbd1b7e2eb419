"""Doubles for tests, ours and our users': a model that is a function, servers that fail, a clock
that jumps, and `mount`, which puts servers behind either transport."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Literal, TypeVar

from .errors import PeerError
from .launch.sockets import bound_socket, url_of
from .responses import function_call_item, make_response, message_item
from .serving.model import Model
from .serving.service import Service
from .transport.cassette import Cassette
from .transport.http import HttpClient
from .transport.peers import Http, Local, Peers, Transport
from .types import JsonObject

T = TypeVar("T")

Over = Literal["local", "round_trip", "http"]
"""The transports: in this process, the same through JSON, and over a real socket."""

OVERS: tuple[Over, ...] = ("local", "round_trip", "http")

Answer = str | JsonObject
"""What a scripted model says: a text, or a whole Responses object."""


@asynccontextmanager
async def mount(
    servers: Mapping[str, Callable[[Peers, str], Service]],
    over: Over = "local",
    cassette: Cassette | None = None,
) -> AsyncIterator[Peers]:
    """Peers that reach each server, made by its factory from `(peers, name)`, over one
    transport."""
    transports: dict[str, Transport] = {}
    peers = Peers(transports, cassette)
    async with AsyncExitStack() as stack:
        client = HttpClient()
        stack.push_async_callback(client.close)
        for name, make in servers.items():
            service = make(peers, name)
            await service.start()
            stack.push_async_callback(service.stop)
            if over == "http":
                sock = bound_socket("127.0.0.1", 0)
                url = url_of(sock)
                await stack.enter_async_context(service.serving(sock))
                transports[name] = Http(name, [url], client)
            else:
                transports[name] = Local(service, round_trip=over == "round_trip")
        yield peers


def making(cls: type[Service], /, **settings: Any) -> Callable[[Peers, str], Service]:
    """A factory for `mount`: the class with these settings."""
    return lambda peers, name: cls(cls.Config.model_validate(settings), peers, name)


class ScriptedModel(Model):
    """A model server that is a function from create params to an answer.

    It keeps its `calls` and counts those `in_flight`; `delay_s` passes before each answer; what the
    function raises is raised.
    """

    is_own = True

    def __init__(
        self,
        answer: Callable[[JsonObject], Answer] | Iterable[Answer],
        peers: Peers | None = None,
        name: str = "policy_model",
        *,
        delay_s: float = 0,
    ) -> None:
        super().__init__(self.Config(), peers or Peers({}), name)
        if callable(answer):
            self._answer = answer
        else:
            answers = iter(answer)
            self._answer = lambda params: next(answers)
        self._delay_s = delay_s
        self.calls: list[JsonObject] = []
        self.in_flight = 0

    async def responses(self, params: JsonObject) -> JsonObject:
        self.calls.append(params)
        self.in_flight += 1
        try:
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            answer = self._answer(params)
        finally:
            self.in_flight -= 1
        return text_response(answer) if isinstance(answer, str) else answer


def text_response(text: str) -> JsonObject:
    """A response that says `text`; every word counts as one output token."""
    return make_response("scripted", [message_item(text)], _usage(len(text.split())))


def call_response(*calls: tuple[str, str]) -> JsonObject:
    """A response that calls tools: `(name, arguments as JSON text)` each."""
    items = [function_call_item(name, arguments) for name, arguments in calls]
    return make_response("scripted", items, _usage(len(calls)))


def _usage(output_tokens: int) -> JsonObject:
    return {"input_tokens": 1, "output_tokens": output_tokens, "total_tokens": 1 + output_tokens}


class FailingServer(Service):
    """Stands in for a server that is down: every call raises what `error` makes."""

    kind: ClassVar[str] = "resources_servers"

    def __init__(self, error: Callable[[], Exception] = lambda: PeerError("is down")) -> None:
        super().__init__(self.Config(), Peers({}), "failing")
        self._error = error

    async def handle(self, path: str, raw: bytes) -> Any:
        raise self._error()


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer when nothing else can run: hours pass in
    milliseconds.

    When nothing is ready and no timer is set, it raises: a deadlock is loud.
    """

    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        self._loop.now += max(0.0, timeout)
        return []


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` under a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
