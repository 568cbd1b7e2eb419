"""A resources server under OpenEnv's protocol, at `/openenv` of its own URL.

A WebSocket at `/openenv/ws` is a client with an episode. `POST /openenv/mcp` has the tools, for
clients that open an episode by `openenv/session/create`. The other routes describe the server.
`openenv_episode` knows what an episode is; here are only messages.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..._version import __version__
from ...errors import ConfigError, RolloutError, TaskError, how_to_install
from ...session import fresh_id
from ...types import JsonObject
from ..open_sessions import OpenSessions
from ..transport.access import send_json
from ..transport.app import read_body
from .openenv_episode import (
    CALL_TOOL,
    LIST_TOOLS,
    RESPOND,
    Episode,
    EpisodeServer,
    EpisodeTasks,
    of_call,
)

log = logging.getLogger(__name__)

PATH = "/openenv"

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, SERVER_ERROR = -32600, -32601, -32602, -32000
"""Codes of JSON-RPC."""

CREATE, CLOSE = "openenv/session/create", "openenv/session/close"
"""OpenEnv's methods beside those of MCP."""

STRING, OBJECT, NULLABLE = {"type": "string"}, {"type": "object"}, {"type": ["number", "null"]}

ACTION: JsonObject = {
    "title": "Action",
    "type": "object",
    "properties": {
        "type": {"enum": [CALL_TOOL, LIST_TOOLS], "default": CALL_TOOL},
        "tool_name": STRING,
        "arguments": OBJECT,
    },
}

OBSERVATION: JsonObject = {
    "title": "Observation",
    "type": "object",
    "properties": {
        **{"done": {"type": "boolean"}, "reward": NULLABLE, "metadata": OBJECT},
        **{"tool_name": STRING, "result": {"type": ["string", "null"]}},
        "tools": {"type": "array", "items": OBJECT},
    },
}

RESET_OBSERVATION: JsonObject = {
    "title": "ResetObservation",
    "type": "object",
    "properties": {"messages": {"type": "array", "items": OBJECT}, "text": STRING},
}

STATE: JsonObject = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer"},
    },
}


class OpenEnvDoor:
    """The ASGI app of a server, with the routes of OpenEnv in front."""

    def __init__(self, app: ASGIApp, server: EpisodeServer) -> None:
        try:
            import websockets  # noqa: F401 - the HTTP server needs it
        except ImportError as error:
            raise ConfigError(
                f"{server.name}: openenv: true needs WebSockets ({error}):"
                f" {how_to_install('rollout-kit[openenv]')}"
            ) from None
        if RESPOND in server.tools:
            raise ConfigError(
                f"{server.name}: for OpenEnv the tool '{RESPOND}' takes the policy's answer: rename"
                " the server's tool of that name"
            )
        self._app, self._server = app, server
        self._tasks = EpisodeTasks.read(server.name, server.config.get("openenv_tasks"))
        self._opened = OpenSessions(server.config.get("session_timeout_s") or 7200, self._close)
        self._routes: dict[tuple[str, str], Callable[[JsonObject], Awaitable[JsonObject]]] = {
            ("GET", "/health"): self._say({"status": "healthy"}),
            ("GET", "/metadata"): self._describe,
            ("GET", "/schema"): self._say(
                {
                    "action": ACTION,
                    "observation": OBSERVATION,
                    "reset_observation": RESET_OBSERVATION,
                    "state": STATE,
                }
            ),
            ("GET", "/state"): self._say(Episode(server, self._tasks).state),
            ("POST", "/reset"): self._reset_once,
            ("POST", "/step"): self._step_once,
            ("POST", "/mcp"): self._answer_rpc,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] not in ("http", "websocket") or not path.startswith(f"{PATH}/"):
            await self._app(scope, receive, send)
            return
        path = path.removeprefix(PATH)
        if scope["type"] == "websocket":
            await self._serve(WebSocket(scope, receive, send), path)
            return
        status, reply = await self._answer(scope["method"], path, await read_body(receive))
        await send_json(send, status, orjson.dumps(reply))

    async def _answer(self, method: str, path: str, raw: bytes) -> tuple[int, JsonObject]:
        """The status and body of a reply."""
        if (method, path) == ("GET", "/openapi.json"):
            return 200, self._list_routes()
        if (route := self._routes.get((method, path))) is None:
            return 404, {"detail": f"no route {method} {PATH}{path}"}
        try:
            return 200, await route(_read_object(raw or b"{}"))
        except RolloutError as error:
            status = error.status if 400 <= error.status <= 599 else 500
            return status, {"detail": str(error)}

    @staticmethod
    def _say(reply: JsonObject) -> Callable[[JsonObject], Awaitable[JsonObject]]:
        async def say(body: JsonObject) -> JsonObject:
            return reply

        return say

    async def _describe(self, body: JsonObject) -> JsonObject:
        about = (type(self._server).__doc__ or self._server.name).strip()
        return {"name": self._server.name, "description": about, "version": __version__}

    def _list_routes(self) -> JsonObject:
        """What OpenEnv's own check reads of an OpenAPI description."""
        paths: JsonObject = {}
        for method, path in self._routes:
            reply = {"200": {"description": "OK"}}
            paths.setdefault(path, {})[method.lower()] = {"responses": reply}
        info = {"title": self._server.name, "version": "1.0.0"}
        return {"openapi": "3.1.0", "info": info, "paths": paths}

    async def _reset_once(self, body: JsonObject) -> JsonObject:
        """An episode for one request, as OpenEnv's own HTTP route."""
        episode = Episode(self._server, self._tasks)
        try:
            return await episode.reset(body)
        finally:
            await episode.close()

    async def _step_once(self, body: JsonObject) -> JsonObject:
        episode = Episode(self._server, self._tasks)
        try:
            await episode.reset({})
            return await episode.step(_object_in(body, "action"))
        finally:
            await episode.close()

    async def _serve(self, socket: WebSocket, path: str) -> None:
        """A client with an episode, as long as it is connected."""
        if path not in ("/ws", "/mcp"):
            await socket.close(1008, f"no route {PATH}{path}")
            return
        await socket.accept()
        id = QueryParams(socket.scope["query_string"]).get("session_id")
        episode = Episode(self._server, self._tasks) if id is None else self._opened.state(id)
        if episode is None:
            await socket.send_text(_error_text("SESSION_ERROR", f"unknown session_id: {id}"))
            await socket.close()
            return
        begun = self._opened.begin_call(id) if id is not None else None
        try:
            while True:
                raw = await socket.receive_text()
                if path == "/mcp":
                    reply = orjson.dumps(await self._answer_rpc_text(raw, episode)).decode()
                else:
                    reply = await self._answer_message(raw, episode)
                if reply is None:
                    break
                await socket.send_text(reply)
        except WebSocketDisconnect:
            return
        finally:
            if id is None:
                await episode.close()
            else:
                self._opened.end_call(id, begun)
        await socket.close()

    async def _answer_message(self, raw: str, episode: Episode) -> str | None:
        """The reply to a message; None if it ends the episode."""
        try:
            message = _read_object(raw)
        except RolloutError as error:
            return _error_text("INVALID_JSON", error.message)
        kind = message.get("type")
        try:
            if kind == "close":
                return None
            if kind == "state":
                return orjson.dumps({"type": kind, "data": episode.state}).decode()
            if kind not in ("reset", "step", "mcp"):
                return _error_text("UNKNOWN_TYPE", f"unknown message type: {kind!r}")
            data = _object_in(message, "data", {} if kind == "reset" else None)
            if kind == "mcp":
                found = {"type": kind, "data": await self._answer_rpc(data, episode)}
            else:
                play = episode.reset if kind == "reset" else episode.step
                found = {"type": "observation", "data": await play(data)}
        except RolloutError as error:
            return _error_text("EXECUTION_ERROR", str(error))
        return orjson.dumps(found).decode()

    async def _answer_rpc_text(self, raw: str, episode: Episode) -> JsonObject:
        try:
            return await self._answer_rpc(_read_object(raw), episode)
        except RolloutError as error:
            return _failure(None, INVALID_REQUEST, error.message)

    async def _answer_rpc(self, request: JsonObject, episode: Episode | None = None) -> JsonObject:
        """The reply to a JSON-RPC request, with the session that its parameters name if there is no
        episode."""
        id, method, params = (request.get(key) for key in ("id", "method", "params"))
        params = {} if params is None else params
        if request.get("jsonrpc") != "2.0" or not isinstance(method, str):
            return _failure(id, INVALID_REQUEST, 'a request has jsonrpc: "2.0" and a method')
        if not isinstance(params, dict):
            return _failure(id, INVALID_PARAMS, "params must be an object")
        try:
            result = await self._call(method, params, episode)
        except RolloutError as error:
            code = {404: METHOD_NOT_FOUND, 422: INVALID_PARAMS}.get(error.status, SERVER_ERROR)
            return _failure(id, code, str(error))
        return {"jsonrpc": "2.0", "id": id, "result": result}

    async def _call(self, method: str, params: JsonObject, episode: Episode | None) -> JsonObject:
        if method == CREATE and episode is None:
            id = fresh_id()
            self._opened.begin(id)
            self._opened.set_state(id, Episode(self._server, self._tasks))
            return {"session_id": id}
        named = params.get("session_id")
        if episode is None and named is not None:
            episode = self._opened.state(str(named))
            if episode is None:
                raise TaskError(f"unknown session_id: {named}")
        if method == CLOSE and named is not None:
            await self._close(str(named))
            return {"session_id": named, "closed": True}
        if method == "tools/list":
            return {"tools": (episode or Episode(self._server, self._tasks)).list_tools()}
        if method != "tools/call":
            raise RolloutError(f"there is no method {method}", status=404)
        if episode is None:
            raise TaskError(f"a call needs a session_id: {CREATE} returns one")
        action = {"tool_name": params.get("name"), "arguments": params.get("arguments") or {}}
        begun = self._opened.begin_call(str(named))
        try:
            return as_call_result(await episode.step(action))
        finally:
            self._opened.end_call(str(named), begun)

    async def _close(self, id: str) -> None:
        episode: Episode | None = self._opened.state(id)
        self._opened.end(id)
        if episode is not None:
            await episode.close()


def as_call_result(played: JsonObject) -> JsonObject:
    """An observation as the result of a call over MCP, with OpenEnv's fields."""
    text = played["observation"]["result"]
    content = [{"type": "text", "text": text}] if text is not None else []
    own = {key: played[key] for key in ("reward", "done", "metadata")}
    name = played["observation"]["tool_name"]
    return {**of_call(name, text), "content": content, "isError": False, "data": text, **own}


def _read_object(raw: str | bytes) -> JsonObject:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise TaskError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise TaskError("expected a JSON object")
    return found


def _object_in(message: JsonObject, key: str, default: JsonObject | None = None) -> JsonObject:
    found = message.get(key, default)
    if not isinstance(found, dict):
        raise TaskError(f"'{key}' must be an object")
    return found


def _error_text(code: str, message: str) -> str:
    return orjson.dumps({"type": "error", "data": {"message": message, "code": code}}).decode()


def _failure(id: Any, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
