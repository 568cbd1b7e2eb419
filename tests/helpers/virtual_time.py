"""Virtual clocks beyond `run_virtual`: for the library's own clocks, and for connections."""

import asyncio
import itertools
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from errno import ECONNREFUSED
from typing import Any, TypeVar

import pytest
from support import HANG_S

from rollout_kit.api.testing import VirtualClockLoop

T = TypeVar("T")

WALL = ("perf_counter", "monotonic")
CPU = ("process_time", "thread_time")
OURS = ("rollout_kit", "resources_servers", "responses_api_models", "responses_api_agents")


ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class LinkedServer:
    """What `create_server` returns, and its only socket."""

    def __init__(
        self, listening: dict[int, ProtocolFactory], port: int, sock: socket.socket | None
    ) -> None:
        self._listening, self._port, self._sock = listening, port, sock
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def is_serving(self) -> bool:
        return self._port in self._listening

    def close(self) -> None:
        self._listening.pop(self._port, None)
        if self._sock:
            self._sock.close()

    async def wait_closed(self) -> None:
        pass


class LinkedLoop(VirtualClockLoop):
    """Both ends of every connection are in this loop, over socket pairs: what one end has written
    can be read at the other at once, so the clock never jumps past it."""

    def __init__(self) -> None:
        super().__init__()
        self._listening: dict[int, ProtocolFactory] = {}
        self._ports = itertools.count(1024)

    async def create_server(
        self,
        factory: Any,
        host: Any = None,
        port: Any = None,
        *,
        sock: socket.socket | None = None,
        **_: Any,
    ) -> Any:
        """Any port stands for a free one; `sock` keeps its own."""
        port = sock.getsockname()[1] if sock else next(self._ports)
        self._listening[port] = factory
        return LinkedServer(self._listening, port, sock)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **keys: Any
    ) -> Any:
        if port not in self._listening:
            raise ConnectionRefusedError(ECONNREFUSED, os.strerror(ECONNREFUSED))
        ours, theirs = socket.socketpair()
        await self.connect_accepted_socket(self._listening[port], theirs)
        return await super().create_connection(factory, sock=ours, **keys)


def run_linked(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` under a virtual clock, with connections between its own servers and clients."""
    with asyncio.Runner(loop_factory=LinkedLoop) as runner:
        return runner.run(main)


def run_virtual_once(holds: Callable[[], bool], main: Coroutine[Any, Any, T]) -> T:
    """Run `main` under a clock that is real until `holds()`, as threads take real time, and virtual
    from then on."""

    def loop() -> VirtualClockLoop:
        made = VirtualClockLoop()
        selector: Any = made._selector  # type: ignore[attr-defined]
        jump, give_up = selector.select, time.monotonic() + HANG_S

        def select(timeout: float | None = None) -> Any:
            if holds():
                selector.select = jump
                return jump(timeout)
            began = time.monotonic()
            assert began < give_up, "it did not come true"
            found = selectors.DefaultSelector.select(
                selector, min(0.01, 1 if timeout is None else timeout)
            )
            made.now += time.monotonic() - began
            return found

        selector.select = select
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


class Loop(LinkedLoop):
    """Its timers ring `late_s` late."""

    def __init__(self, now: float, late_s: float) -> None:
        super().__init__()
        self.now, self._late_s = now, late_s

    def call_at(self, when: float, *args: Any, **keys: Any) -> asyncio.TimerHandle:
        return super().call_at(when + self._late_s, *args, **keys)


class VirtualTime:
    """The clock of the linked loops that `run` makes, one after the other.

    `time.perf_counter` and the like read it, also where a module of the library has imported them
    by name.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.late_s = 0.0
        self.other_threads_burn = False
        self._burnt_s = 0.0
        self._loop: Loop | None = None
        clocks = dict.fromkeys(WALL, self.now) | dict.fromkeys(CPU, self.cpu_s)
        real = {name: getattr(time, name) for name in clocks}
        ours = [module for name, module in sys.modules.items() if name.partition(".")[0] in OURS]
        for name, clock in clocks.items():
            for module in ours:
                if vars(module).get(name) is real[name]:
                    monkeypatch.setattr(module, name, clock)
            monkeypatch.setattr(time, name, clock)

    def now(self) -> float:
        return self._loop.now if self._loop else 1000.0

    def cpu_s(self) -> float:
        return self.now() if self.other_threads_burn else self._burnt_s

    def block(self, seconds: float) -> None:
        """Hold the event loop without using the CPU."""
        assert self._loop
        self._loop.now += seconds

    def burn(self, seconds: float) -> None:
        """Hold the event loop and use the CPU."""
        self.block(seconds)
        self._burnt_s += seconds

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        loop = self._loop = Loop(self.now(), self.late_s)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(main)
