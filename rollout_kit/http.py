"""The one HTTP client: connection limits, keep-alive, time limits, and failures by name.

It never repeats a request: whether that is safe only its caller knows. What goes wrong before a
byte was sent is a PeerUnreachable, so that the caller can tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from .errors import PeerLost, PeerTimeout, PeerUnreachable

CONNECT_TIMEOUT_S = 10.0
"""A server that listens accepts within milliseconds; ten seconds cover a restart and a far
region."""

KEEP_ALIVE_S = 15.0
"""Idle connections are dropped here before our servers (75 s) drop them, so none dies under a
request."""

JSON_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; `headers` are case-insensitive and know `getall`."""

    status: int
    headers: Any
    raw: bytes

    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")


class HttpClient:
    """Connections to any number of hosts. `limit` and `limit_per_host` bound them; 0 =
    unlimited."""

    def __init__(self, limit: int = 0, limit_per_host: int = 0) -> None:
        connector = aiohttp.TCPConnector(
            limit=limit, limit_per_host=limit_per_host, keepalive_timeout=KEEP_ALIVE_S
        )
        # sessions carry their own cookies: a shared jar would mix the attempts
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def post(
        self,
        url: str,
        raw: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600,
    ) -> Reply:
        return await self._send("POST", url, raw, {**JSON_HEADERS, **(headers or {})}, timeout_s)

    async def get(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 600
    ) -> Reply:
        return await self._send("GET", url, None, headers, timeout_s)

    async def _send(
        self,
        method: str,
        url: str,
        raw: bytes | None,
        headers: Mapping[str, str] | None,
        timeout_s: float,
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(
                method, url, data=raw, headers=headers, timeout=timeout, allow_redirects=False
            ) as reply:
                return Reply(reply.status, reply.headers, await reply.read())
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise PeerUnreachable(f"cannot connect to {url}: {_reason(error)}") from error
        except TimeoutError as error:
            raise PeerTimeout(f"{url} did not answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise PeerLost(f"{url} broke off: {_reason(error)}") from error

    async def close(self) -> None:
        await self._session.close()


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
