"""`/run` of an environment server whose code is NeMo Gym's: it takes a row, and answers with a
rollout or with the reason why there is none.

NeMo Gym's own route takes a request for an episode, which reaches it unchanged. This file runs
under the server's interpreter, and imports nothing of this toolkit.
"""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

ROUTE = "/run"

PARAMS, SOURCE = "responses_create_params", "task_source"

NO_REQUEST: dict[str, Any] = {"input": []}
"""Request of a row that has none: the conversation begins in the server."""

Convert = Callable[[dict[str, Any]], dict[str, Any]]


def request_of(row: dict[str, Any], name: str) -> dict[str, Any]:
    """The request for an episode; `name` is that of the server, for a row without a taskset."""
    fields = {
        key: value
        for key, value in row.items()
        if not key.startswith("_ng_") and key not in ("agent_ref", SOURCE)
    }
    if fields.get(PARAMS) == NO_REQUEST:
        del fields[PARAMS]
    task = str(row.get("task_id") or row.get("_ng_task_index", 0))
    identity = {"taskset": str(row.get(SOURCE) or name), "task_id": task}
    episode = {"rollout_id": uuid4().hex, "attempt": 0}
    return {"episode_id": episode, "task": {"task_id": identity, "task_input": fields}}


def reply_of(episode: dict[str, Any], convert: Convert) -> dict[str, Any]:
    """What a collector gets: the result as a rollout, or NeMo Gym's words for a failure."""
    failure = episode.get("failure")
    if isinstance(failure, dict):
        parts = [failure.get(each) for each in ("stage", "failure_kind", "failure_reason")]
        why = ": ".join(str(each) for each in parts if each)
        return {"_ng_failure_class": why, "_ng_failure_terminal": bool(failure.get("terminal"))}
    result = episode.get("result")
    found = convert(result) if isinstance(result, dict) else episode
    return {**found, "_ng_task_id": episode.get("task_id")}


class EpisodeRoute:
    """The app of an environment server behind a route that takes rows."""

    def __init__(self, app: Any, name: str, convert: Convert) -> None:
        self._app, self._name, self._convert = app, name, convert

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope.get("path") != ROUTE:
            await self._app(scope, receive, send)
            return
        raw = await read_body(receive)
        row = json.loads(raw)
        is_row = isinstance(row, dict) and not {"episode_id", "task"} <= row.keys()
        sent = json.dumps(request_of(row, self._name)).encode() if is_row else raw
        status, headers, body = await self._ask(scope, receive, sent)
        if is_row and status == 200:
            body = json.dumps(reply_of(json.loads(body), self._convert)).encode()
        kept = [each for each in headers if each[0].lower() != b"content-length"]
        kept.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": kept})
        await send({"type": "http.response.body", "body": body})

    async def _ask(self, scope: Any, receive: Any, body: bytes) -> tuple[int, list[Any], bytes]:
        """What the app answers to another body. An end of the connection still reaches it."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        headers = [each for each in scope["headers"] if each[0].lower() != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        status, replied, parts = 500, [], []

        async def take() -> Any:
            return messages.pop() if messages else await receive()

        async def note(message: Any) -> None:
            nonlocal status, replied
            if message["type"] == "http.response.start":
                status, replied = message["status"], message.get("headers", [])
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._app({**scope, "headers": headers}, take, note)
        return status, replied, b"".join(parts)


async def read_body(receive: Any) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
