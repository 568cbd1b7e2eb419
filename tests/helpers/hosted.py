"""Somebody else's endpoint, on a real socket: what it is asked, and what it answers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
from aiohttp import web
from support import HANG_S
from virtual_time import run_linked

from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.endpoints.completions import as_completion
from rollout_kit.serving.endpoints.events import completion_events, response_events
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.session import entered

RESPONSE = {**make_response("m", [message_item("Hi")], None), "unknown_to_us": [1]}
CHAT = {
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
}
HI = {"input": "Hi"}


class Endpoint:
    """A real HTTP endpoint that gives `replies` in turn, the last one for ever."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.bodies, self.headers, self.paths = [], [], []

    async def answer(self, request):
        self.bodies.append(orjson.loads(await request.read()))
        self.headers.append(request.headers)
        self.paths.append(request.path)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return await reply(request)


def gives(value, status=200, **headers):
    raw = value if isinstance(value, bytes) else orjson.dumps(value)

    async def reply(request):
        named = {key.replace("_", "-"): text for key, text in headers.items()}
        return web.Response(
            body=raw, status=status, headers={"content-type": "application/json", **named}
        )

    return reply


def refuses(status, message="no", **fields):
    return gives({"error": {"message": message, **fields}}, status)


async def hangs(request):
    await asyncio.sleep(30)


async def breaks_off(request):
    request.transport.abort()
    return web.Response()


async def aborts(request):
    request.transport.abort()


async def stops_halfway(request):
    reply = web.StreamResponse(headers={"content-length": "1000"})
    await reply.prepare(request)
    await reply.write(b'{"output": [')
    request.transport.close()
    return reply


def streams(events, pause_s=0.0, then=None):
    """Events one by one; `then` befalls the connection after the last of them."""

    async def reply(request):
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for event in events:
            await asyncio.sleep(pause_s)
            await answer.write(event)
        if then:
            await then(request)
        return answer

    return reply


def events_of(response, upstream_api):
    if upstream_api == "responses":
        return response_events(response)
    return completion_events(as_completion(response), usage=True)


@asynccontextmanager
async def listening(endpoint):
    """The URL at which it answers, whatever the path."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", endpoint.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def running(provider: Any) -> Iterator[str]:
    """Context in which the endpoint listens, in a thread; its URL."""
    ready, told = threading.Event(), list[Any]()

    async def serve() -> None:
        stopping = asyncio.Event()
        async with listening(provider) as url:
            told.extend((url, asyncio.get_running_loop(), stopping))
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(HANG_S)
        yield told[0]
    finally:
        _, loop, stopping = told
        loop.call_soon_threadsafe(stopping.set)
        thread.join(HANG_S)


def with_model(endpoint, use, make, *, run=run_linked):
    """Run `use(model)` with the model that `make` makes of the URL of a listening `endpoint`.

    The clock is virtual unless `run` is another: `asyncio.run` where a process or a thread takes
    part.
    """

    async def main():
        async with listening(endpoint) as url:
            model = make(url)
            try:
                await model.start()
                return await use(model)
            finally:
                await model.stop()

    return run(main())


def asks(params=None, session=None):
    """As a peer does."""

    async def use(model):
        with entered(session):
            return await model.answer("/v1/responses", orjson.dumps(params or HI))

    return use


@asynccontextmanager
async def through_openai_model(simulated, **settings):
    """An `openai_model` that asks this simulated model over HTTP."""
    sock = bound_socket("127.0.0.1", 0)
    given = {"openai_base_url": f"{url_of(sock)}/v1", "openai_model": "simulated", **settings}
    cls = registry.load("responses_api_models", "openai_model")
    await simulated.start()
    async with simulated.serving(sock):
        yield cls(cls.Config.model_validate(given), None, "policy_model")
