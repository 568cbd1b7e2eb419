"""Test doubles, also for users' tests: a scripted model, a failing server, a virtual clock, and
`mount`, which starts servers over a transport."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import isawaitable
from typing import Any, Literal, TypeVar

from ..responses import function_call_item, make_response
from ..serving.functions import Answer, Answering, FunctionModel, text_response, usage_of
from ..serving.service import Service
from ..serving.sockets import bound_socket, url_of
from ..serving.transport.cassette import Cassette
from ..serving.transport.http import HttpClient
from ..serving.transport.peers import Http, Local, Peers, Transport
from ..types import JsonObject

T = TypeVar("T")

Over = Literal["local", "round_trip", "http"]
"""Transports: in this process, in this process through JSON, and over a socket."""

OVERS: tuple[Over, ...] = ("local", "round_trip", "http")


@asynccontextmanager
async def mount(
    servers: Mapping[str, Callable[[Peers, str], Service]],
    over: Over = "local",
    cassette: Cassette | None = None,
) -> AsyncIterator[Peers]:
    """Create each server with its factory `(peers, name)`, start it, and yield peers that reach all
    of them over one transport."""
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
    """Return a factory for `mount` that creates the class with these settings."""
    return lambda peers, name: cls(cls.Config.model_validate(settings), peers, name)


class ScriptedModel(FunctionModel):
    """A model server that answers with a function of the create params, or from a list.

    It records its `calls`, counts those `in_flight`, waits `delay_s` before each answer, and raises
    what the function raises.
    """

    def __init__(
        self,
        answer: Answering | Iterable[Answer],
        peers: Peers | None = None,
        name: str = "policy_model",
        *,
        delay_s: float = 0,
    ) -> None:
        if not callable(answer):
            answers = iter(answer)
            super().__init__(lambda params: next(answers), peers, name)
        else:
            super().__init__(answer, peers, name)
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
            if isawaitable(answer):
                answer = await answer
        finally:
            self.in_flight -= 1
        return text_response(answer) if isinstance(answer, str) else answer

    def model_name(self) -> str:
        return self.name

    def generation_settings(self) -> JsonObject:
        return {}


def call_response(*calls: tuple[str, str]) -> JsonObject:
    """Build a response with tool calls, each `(name, arguments as JSON text)`."""
    items = [function_call_item(name, arguments) for name, arguments in calls]
    return make_response("scripted", items, usage_of(len(calls)))


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else can run, so that hours
    pass in milliseconds. It raises RuntimeError if nothing is ready and no timer is set.
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
    """Run `main` with a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
