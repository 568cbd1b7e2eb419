"""A real OpenAI-compatible endpoint on a real socket, in a thread of the test's own process."""

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

from aiohttp import web

from rollout_kit.api.testing import text_response
from rollout_kit.serving.sockets import bound_socket, url_of

Behaviour = Callable[[dict[str, Any]], tuple[int, Any]]
"""From a request's body to status and answer; status 0 drops the connection."""


def says(text: Callable[[dict[str, Any]], str]) -> Behaviour:
    return lambda body: (200, text_response(text(body)))


class Endpoint:
    """Counts what it `saw`, by the text of the first message; keeps path, headers and body of all
    `requests`."""

    def __init__(self, behaviour: Behaviour, delay_s: float) -> None:
        self.behaviour = behaviour
        self.delay_s = delay_s
        self.num_answered = inf
        """Requests beyond so many wait until it is raised."""
        self.saw: Counter[str] = Counter()
        self.requests: list[tuple[str, Mapping[str, str], dict[str, Any]]] = []
        self.url = ""

    async def responses(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, request.headers, body))
        texts = (item["content"] for item in body["input"] if "content" in item)
        self.saw[str(next(texts, ""))] += 1
        number = len(self.requests)
        await asyncio.sleep(self.delay_s)
        while number > self.num_answered:  # noqa: ASYNC110  another thread raises it
            await asyncio.sleep(0.01)
        status, answer = self.behaviour(body)
        if not status and request.transport:  # drop the connection
            request.transport.abort()
        return web.json_response(answer, status=status or 500)


@contextmanager
def served(app: web.Application, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve in a thread; the URL."""
    loop, sock = asyncio.new_event_loop(), bound_socket("127.0.0.1", 0)

    async def serve() -> web.AppRunner:
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, sock, ssl_context=tls).start()
        return runner

    runner = loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield url_of(sock)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def endpoint(
    behaviour: Behaviour, *, delay_s: float = 0.0, tls: ssl.SSLContext | None = None
) -> Iterator[Endpoint]:
    """Answers `POST …/responses` while inside."""
    found = Endpoint(behaviour, delay_s)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/{root:.*}/responses", found.responses)
    with served(app, tls) as url:
        found.url = f"{url}/v1"
        yield found
