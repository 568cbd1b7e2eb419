"""A client of an OpenEnv server: one WebSocket, and one episode, for each rollout.

A connection that breaks is `SessionLost`. In a deterministic environment the actions so far are
taken again over a new connection, and must have the same observations.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from ...errors import PeerError, SessionLost, ToolError, on_one_line
from ...reading import parse_line
from ...responses import as_object
from ...types import JsonObject
from ..transport.access import bearer
from ..transport.http import HttpClient

CAPACITY = "CAPACITY_REACHED"
"""Code of a server whose sessions are all taken."""

MAX_MESSAGE = 100 << 20
"""Bytes; as OpenEnv's own client."""


class OpenEnvFull(PeerError):
    """The server has no place for a further session."""


@dataclass(frozen=True, slots=True)
class OpenEnvServer:
    """An OpenEnv server: its URL without a route, and how it is called in errors."""

    name: str
    url: str
    timeout_s: float = 60.0
    auth_token: str | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return bearer(self.auth_token)

    def lose(self, why: object) -> SessionLost:
        """The error about a connection that broke."""
        what = f"the OpenEnv server at {self.url} has ended the session: {why}"
        return SessionLost(what, server=self.name)


async def fetch(server: OpenEnvServer, path: str, body: JsonObject | None = None) -> JsonObject:
    """The reply to a GET, or to a POST with a body; empty if the server refuses it. PeerError if it
    cannot be reached, or its reply is not a JSON object."""
    client, url = HttpClient(), server.url + path
    try:
        if body is None:
            reply = await client.get(url, headers=server.headers, timeout_s=server.timeout_s)
        else:
            raw, limit_s = orjson.dumps(body), server.timeout_s
            reply = await client.post(url, raw, headers=server.headers, timeout_s=limit_s)
    finally:
        await client.close()
    if reply.status != 200:
        return {}
    if (found := parse_line(reply.raw)) is None:
        raise PeerError(f"{url}: the reply is not a JSON object", server=server.name)
    return found


@dataclass(slots=True)
class PlayedEpisode:
    """An episode at a server, as far as it was played."""

    server: OpenEnvServer
    reset_with: JsonObject
    replays: bool = False
    """Whether a broken connection is made again, and the actions are repeated."""
    observation: JsonObject = field(default_factory=dict)
    """The latest one."""
    rewards: list[float] = field(default_factory=list)
    """Those that the steps had."""
    is_over: bool = False
    _played: list[tuple[JsonObject, JsonObject]] = field(default_factory=list)
    _socket: Any = None

    async def begin(self) -> None:
        """Connect and reset. OpenEnvFull, PeerError if the server cannot be reached, ToolError if
        it refuses to reset."""
        self._note(await self._reset())
        self.rewards.clear()

    async def step(self, action: JsonObject) -> JsonObject:
        """Take an action; the observation. ToolError if the environment refuses it."""
        if self.is_over:
            raise ToolError("the episode is over")
        try:
            reply = await self._ask("step", action)
        except SessionLost:
            if not self.replays:
                raise
            await self._replay()
            reply = await self._ask("step", action)
        self._played.append((action, reply))
        self._note(reply)
        return self.observation

    async def close(self) -> None:
        """Leave the server, whose session ends with the connection."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(Exception):  # the server may be gone
                await socket.send('{"type": "close"}')
            await socket.close()

    def _note(self, reply: JsonObject) -> None:
        self.observation = reply.get("observation") or {}
        self.is_over = bool(reply.get("done"))
        if (reward := reply.get("reward")) is not None:
            self.rewards.append(float(reward))

    async def _replay(self) -> None:
        """Take all actions again in a new session; SessionLost if it does not go as before."""
        await self.close()
        await self._reset()
        for number, (action, reply) in enumerate(self._played, 1):
            again = await self._ask("step", action)
            if _outcome(again) != _outcome(reply):
                raise self.server.lose(f"action {number}, when repeated, had another observation")

    async def _reset(self) -> JsonObject:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        url = f"ws{self.server.url.removeprefix('http')}/ws"
        try:
            self._socket = await connect(
                url,
                additional_headers=self.server.headers,
                max_size=MAX_MESSAGE,
                open_timeout=self.server.timeout_s,
                proxy=None,
            )
        except (OSError, WebSocketException) as error:
            what = f"the OpenEnv server at {self.server.url} cannot be reached: {error}"
            raise PeerError(what, server=self.server.name) from None
        return await self._ask("reset", self.reset_with)

    async def _ask(self, kind: str, data: JsonObject) -> JsonObject:
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            raise self.server.lose("the connection was closed")
        try:
            async with asyncio.timeout(self.server.timeout_s):
                await self._socket.send(orjson.dumps({"type": kind, "data": data}).decode())
                raw = await self._socket.recv(decode=False)
        except TimeoutError:
            why = f"{kind} took longer than timeout_s={self.server.timeout_s:g}"
            raise self.server.lose(why) from None
        except (ConnectionClosed, OSError) as error:
            raise self.server.lose(error) from None
        if (reply := parse_line(raw)) is None:
            raise self.server.lose("its reply is not a JSON object")
        told = as_object(reply.get("data"))
        if reply.get("type") == "observation":
            return dict(told)
        message = on_one_line(str(told.get("message") or reply), 1000)
        if told.get("code") == CAPACITY:
            raise OpenEnvFull(message, server=self.server.name)
        if told.get("code") in ("SESSION_ERROR", "FACTORY_ERROR"):
            raise self.server.lose(message)
        if told.get("errors"):
            message = f"{message}: {on_one_line(orjson.dumps(told['errors']).decode(), 1000)}"
        raise ToolError(message, server=self.server.name)


def _outcome(reply: JsonObject) -> Any:
    return [reply.get(key) for key in ("observation", "reward", "done")]
