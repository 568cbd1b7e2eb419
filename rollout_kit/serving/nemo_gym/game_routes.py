"""The four steps of a rollout for a game of NeMo Gym, which has only `/reset` and `/step`.

`/seed_session` keeps the row, which its routes expect in each request; `/verify` answers with the
sum of the rewards of all steps. Requests without a session of ours reach the game unchanged. This
file runs under the game's interpreter, and imports nothing of this toolkit.
"""

import json
from typing import Any

SESSION = b"x-rollout-session"

STEPS = frozenset({"/seed_session", "/reset", "/step", "/verify", "/close_session"})


def is_game(app: Any) -> bool:
    paths = {getattr(route, "path", "") for route in getattr(app, "routes", ())}
    return {"/reset", "/step"} <= paths and "/verify" not in paths


class GameRoutes:
    """The game's app behind the steps of a rollout."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._rows: dict[bytes, dict[str, Any]] = {}
        self._verdicts: dict[bytes, dict[str, Any]] = {}
        self._to_close: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        session = dict(scope.get("headers", ())).get(SESSION)
        path = scope.get("path")
        if scope["type"] != "http" or session is None or path not in STEPS:
            await self._app(scope, receive, send)
            return
        body = json.loads(await read_body(receive) or b"{}")
        if path in ("/reset", "/step"):
            await self._play(scope, session, body, send)
            return
        reply: dict[str, Any] = {}
        if path == "/seed_session":
            self._rows[session], self._verdicts[session] = body, {"reward": 0.0}
        elif path == "/verify":
            reply = {**body, **self._verdicts.get(session, {})}
        elif self._rows.pop(session, None) is not None:
            self._verdicts.pop(session)
            if session in self._to_close:
                self._to_close.discard(session)
                await self._ask({**scope, "path": "/close", "raw_path": b"/close"}, {})
        await answer(send, 200, [], json.dumps(reply).encode())

    async def _play(self, scope: Any, session: bytes, body: dict[str, Any], send: Any) -> None:
        whole = {**self._rows.get(session, {}), **body}
        status, headers, raw = await self._ask(scope, whole)
        step = json.loads(raw) if status < 400 else {}
        if (step.get("info") or {}).get("supports_explicit_close"):
            self._to_close.add(session)
        if step and scope["path"] == "/step":
            total = self._verdicts[session]["reward"] + step.get("reward", 0.0)
            told = {key: step.get(key) for key in ("terminated", "truncated", "info")}
            self._verdicts[session] = {"reward": total, **told}
        await answer(send, status, headers, raw)

    async def _ask(self, scope: Any, body: dict[str, Any]) -> tuple[int, list[Any], bytes]:
        raw, said = json.dumps(body).encode(), []
        kept = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        length = (b"content-length", str(len(raw)).encode())

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def take(message: dict[str, Any]) -> None:
            said.append(message)

        await self._app({**scope, "headers": [*kept, length]}, receive, take)
        text = b"".join(message.get("body", b"") for message in said)
        return said[0]["status"], list(said[0].get("headers", ())), text


async def read_body(receive: Any) -> bytes:
    raw, more = b"", True
    while more:
        message = await receive()
        raw, more = raw + message.get("body", b""), message.get("more_body", False)
    return raw


async def answer(send: Any, status: int, headers: list[Any], raw: bytes) -> None:
    kept = [pair for pair in headers if pair[0] not in (b"content-length", b"content-type")]
    kept += [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": kept})
    await send({"type": "http.response.body", "body": raw})
