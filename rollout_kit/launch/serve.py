"""A server process, `python -m rollout_kit.launch.serve`; `fleet` starts it.

The first line of standard input is the plan, because other processes can read arguments and
environments. The end of standard input means that the parent has ended, and ends the process.
"""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack

import orjson

from ..errors import RolloutKitError
from ..serving import registry
from ..serving.process_tree import MARK, kill_family
from ..serving.service import Service
from ..serving.transport import loop
from ..serving.transport.cassette import Cassette, Tapes
from ..serving.transport.http import HttpClient
from ..serving.transport.peers import Local, Peers, over_http
from ..types import JsonObject
from .output import BEGINS

PR_SET_PDEATHSIG = 1
"""prctl(2): set the signal that this process receives when its parent dies."""

STOP_S = 3.0
"""Time after which a stopping process kills its whole process group."""


def main() -> None:
    die_with_parent()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger(__name__.partition(".")[0]).setLevel(logging.INFO)  # only our own modules
    plan = orjson.loads(sys.stdin.buffer.readline())
    try:
        loop.run(_serve(plan))
    except RolloutKitError as error:
        sys.exit(f"error: {error}")


def die_with_parent() -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    except (OSError, AttributeError):
        return  # not Linux: only the end of standard input ends this process


async def _serve(plan: JsonObject) -> None:
    stopping = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stopping.set)
    parent = FromParent(stopping)
    running.add_reader(sys.stdin.fileno(), parent.read)
    async with AsyncExitStack() as stack:
        tapes = Cassette.of(Tapes(**plan["tapes"]), plan["instances"][0]["name"])
        services, parent.peers = await start_services(plan, stack, tapes)
        os.write(sys.stdout.fileno(), f"{BEGINS}\n".encode())
        for service in services:
            sock = socket.socket(fileno=plan["sockets"][service.name])
            accepted = plan["accepted"][service.name]
            await stack.enter_async_context(service.serving(sock, plan["run_id"], accepted))
        await stopping.wait()
        running.call_later(STOP_S, take_everything_down)
    take_everything_down()


async def start_services(
    plan: JsonObject, stack: AsyncExitStack, cassette: Cassette | None = None
) -> tuple[list[Service], Peers]:
    """The instances of a plan as running services of this process, and how they reach the others;
    closing `stack` stops them."""
    client = HttpClient(**plan["http"])
    stack.push_async_callback(client.close)
    transports = over_http(plan, client)
    peers = Peers(transports, cassette)
    services: list[Service] = []
    for instance in plan["instances"]:
        cls = registry.load(instance["type"], instance["implementation"])
        config = cls.Config.of(instance["settings"], instance["private"])
        service = cls(config, peers, instance["name"])
        service.is_restarted = plan["is_restarted"]
        transports[service.name] = Local(service)
        services.append(service)
    for service in services:
        await service.start()
        stack.push_async_callback(service.stop)
    return services, peers


class FromParent:
    """What comes through standard input after the plan: lines about servers that have moved, and at
    last its end."""

    def __init__(self, ended: asyncio.Event) -> None:
        self.peers: Peers | None = None
        self._ended = ended
        self._begun = b""

    def read(self) -> None:
        if not (raw := os.read(sys.stdin.fileno(), 1 << 16)):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._ended.set()
        *lines, self._begun = (self._begun + raw).split(b"\n")
        for line in lines:
            moved = orjson.loads(line)
            if self.peers is not None:
                self.peers.move(moved["server"], moved["urls"])


def take_everything_down() -> None:
    """Kill this process and its descendants."""
    kill_family(os.getpid(), os.environ.get(MARK, ""), spare=os.getpid())
    os._exit(0)


if __name__ == "__main__":
    main()
