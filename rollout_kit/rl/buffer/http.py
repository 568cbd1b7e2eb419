"""A buffer over HTTP: its server, for trainers in other processes and languages, and the client.

Each operation is a POST with a JSON object: `/get {"number": 32, "wait_s": 20}`. The access rules
are those of every server of this package.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from ...errors import ConfigError, PeerError
from ...serving.sockets import bound_socket, url_of
from ...serving.transport.access import bearer, send_json
from ...serving.transport.app import read_body, served
from ...serving.transport.http import HttpClient
from ...serving.transport.loop import cancel_all
from .buffer import Buffer
from .policy import BufferPolicy
from .remote import MAX_WAIT_S, BadMessage, RemoteBuffer, answer

REPLY_S = 60.0
"""Time for a reply beyond the time that the call waits."""


@asynccontextmanager
async def serve_buffer(
    buffer: Buffer, host: str = "127.0.0.1", port: int = 0, token: str = ""
) -> AsyncIterator[str]:
    """Context in which a buffer answers over HTTP; the value is its URL. Beyond this machine, and
    for other users of it, `token` is required."""
    try:
        sock = bound_socket(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"buffer: cannot listen on {host}:{port}: {reason}") from None
    async with served(_app_of(buffer), sock, token):
        yield url_of(sock)


def _app_of(buffer: Buffer) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raw, path = await read_body(receive), scope["path"].strip("/")
        if path == "health":
            status, reply = 200, b'{"status":"ok"}'
        else:
            reply_task = asyncio.ensure_future(_reply(buffer, path, raw))
            left = asyncio.ensure_future(receive())  # the end of the connection
            try:
                await asyncio.wait([reply_task, left], return_when=asyncio.FIRST_COMPLETED)
                if not reply_task.done():
                    return
                status, reply = reply_task.result()
            finally:
                await cancel_all([reply_task, left])
        await send_json(send, status, reply)

    return app


async def _reply(buffer: Buffer, path: str, raw: bytes) -> tuple[int, bytes]:
    try:
        return 200, await answer(buffer, path, raw)
    except BadMessage as error:
        return 422, orjson.dumps({"error": {"type": "PeerError", "message": str(error)}})


class HttpBuffer(RemoteBuffer):
    """A buffer that `serve_buffer` serves at `url`."""

    def __init__(self, url: str, token: str = "") -> None:
        super().__init__(BufferPolicy())
        self._url, self._headers, self._client = url.rstrip("/"), bearer(token), HttpClient()

    async def close(self) -> None:
        await self._client.close()

    async def _send(self, operation: str, raw: bytes, wait_s: float) -> bytes:
        url = f"{self._url}/{operation}"
        limit_s = min(wait_s, MAX_WAIT_S) + REPLY_S
        reply = await self._client.post(url, raw, headers=self._headers, timeout_s=limit_s)
        if reply.status != 200:
            text = "no buffer answers here" if reply.status == 404 else reply.text()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = orjson.loads(reply.raw)["error"]["message"]
            raise PeerError(f"{url}: {text}", status=reply.status, retryable=reply.status >= 500)
        return reply.raw
