"""A model endpoint that costs almost nothing, so that it does not affect measurements.

    python -m benchmarks.endpoint    # prints its port, and answers until it is killed

Answers are prepared bytes. `POST /config` with a Setting selects them and their delay; `GET /stats`
returns what arrived since then.
"""

import asyncio
import json
import time
from array import array
from dataclasses import asdict, dataclass
from urllib.request import Request, urlopen

from . import work
from .raised import raise_file_limit


@dataclass(frozen=True, slots=True)
class Setting:
    """How the endpoint answers. `limit` is the number of requests in flight of the client."""

    answer: str = "short"
    latency_s: float = 0.0
    limit: int = 1


@dataclass(frozen=True, slots=True)
class Stats:
    """What the endpoint observed; times are CLOCK_MONOTONIC, which all processes share."""

    requests: int
    first_s: float
    last_s: float
    max_in_flight: int
    mean_in_flight: float
    """From the end of the ramp-up (the request that fills the limit) to the last request."""


class Book:
    """Arrivals and departures as one number each, which is cheap enough for every request."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.answers = work.answers(setting.answer)
        self.arrived, self.left = array("d"), array("d")
        self.max_in_flight = 0

    def arrive(self) -> None:
        self.arrived.append(time.monotonic())
        in_flight = len(self.arrived) - len(self.left)
        if in_flight > self.max_in_flight:
            self.max_in_flight = in_flight

    def stats(self) -> Stats:
        arrived, left = self.arrived, self.left
        return Stats(
            len(arrived),
            arrived[0] if arrived else 0.0,
            left[-1] if left else 0.0,
            self.max_in_flight,
            mean_in_flight(arrived, left, self.setting.limit),
        )


def mean_in_flight(arrived: "array[float]", left: "array[float]", limit: int) -> float:
    """Mean number in flight, from the arrival that fills `limit` to the last one."""
    if len(arrived) <= limit:
        return 0.0
    begin, end = arrived[limit - 1], arrived[-1]
    if end <= begin:
        return 0.0
    came = sum(max(end - max(at, begin), 0.0) for at in arrived)
    went = sum(max(end - max(at, begin), 0.0) for at in left)
    return (came - went) / (end - begin)


class Endpoint(asyncio.Protocol):
    """One connection; its requests are sequential."""

    book = Book(Setting())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.loop = asyncio.get_running_loop()
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            _, found, rest = head.partition(b"content-length:")
            length = int(rest.split(b"\r\n", 1)[0]) if found else 0
            whole = end + 4 + length
            if len(self.buffer) < whole:
                return
            body, self.buffer = self.buffer[end + 4 : whole], self.buffer[whole:]
            self.take(head.split(b" ", 2)[1], body)

    def take(self, path: bytes, body: bytes) -> None:
        book = self.book
        if path.endswith((b"/responses", b"/chat/completions")):
            book.arrive()
            answer = book.answers.chat
            if path.endswith(b"/responses"):
                turns = book.answers.turns
                answer = turns[body.count(b'"function_call_output"') if len(turns) > 1 else 0]
            if book.setting.latency_s:
                self.loop.call_later(book.setting.latency_s, self.finish, book, answer)
            else:
                self.finish(book, answer)
        elif path in work.TOOLS:
            self.transport.write(work.reply(work.TOOL_OUTPUT.encode()))
        elif path == b"/config":
            Endpoint.book = Book(Setting(**json.loads(body)))
            self.transport.write(work.reply(b"{}"))
        elif path == b"/stats":
            self.transport.write(work.reply(json.dumps(asdict(book.stats())).encode()))
        else:
            self.transport.write(work.reply(work.MODELS))

    def finish(self, book: Book, answer: bytes) -> None:
        book.left.append(time.monotonic())
        if not self.transport.is_closing():
            self.transport.write(answer)


def configure(port: int, setting: Setting) -> None:
    """Change how the endpoint answers, and reset the counts."""
    body = json.dumps(asdict(setting)).encode()
    urlopen(Request(f"http://127.0.0.1:{port}/config", body), timeout=10).close()


def stats(port: int) -> Stats:
    with urlopen(f"http://127.0.0.1:{port}/stats", timeout=30) as reply:
        return Stats(**json.loads(reply.read()))


def main() -> None:
    import gc

    import uvloop

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(
            Endpoint, "127.0.0.1", 0, backlog=8192
        )
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    raise_file_limit()
    gc.freeze()
    gc.disable()
    uvloop.run(serve())


if __name__ == "__main__":
    main()
