"""A page behind HTTP: its files, its headers, and what its routes answer.

It runs under a policy that loads nothing from elsewhere. Text of a model reaches it as JSON and is
only ever shown as text.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import RolloutKitError

SHARED = Path(__file__).parent / "shared"

TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".html": "text/html",
}

POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def build_site(folder: Path, routes: Sequence[BaseRoute]) -> ASGIApp:
    """The application: the routes, and the files of a page and those that all pages share."""

    async def page(request: Request) -> Response:
        path = find_file(folder, request.path_params.get("name", "index.html"))
        if path is None:
            return Response("there is no such page", 404)
        return Response(path.read_bytes(), media_type=TYPES[path.suffix])

    return _with_headers(Starlette(routes=[*routes, Route("/", page), Route("/{name:path}", page)]))


def find_file(folder: Path, name: str) -> Path | None:
    """A file of a page, of its own or shared; None if there is none."""
    for top in (folder, SHARED):
        with suppress(OSError, ValueError):  # no file can have such a name
            path = (top / name).resolve()
            if path.is_relative_to(top) and path.suffix in TYPES and path.is_file():
                return path
    return None


def as_json(found: Any) -> Response:
    raw = found if isinstance(found, bytes) else orjson.dumps(found)
    return Response(raw, media_type="application/json")


def refuse(status: int, message: str) -> Response:
    return Response(orjson.dumps({"error": message}), status, media_type="application/json")


async def read_json(request: Request) -> Any:
    """The body of a request; None if it is not JSON."""
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        return None


def refusing(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An endpoint that answers what cannot be done with its reason."""

    async def endpoint(request: Request) -> Response:
        try:
            return as_json(await answer(request))
        except RolloutKitError as error:
            return refuse(400, str(error))

    return endpoint


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Every reply with HEADERS; requests that a page of another site makes are refused."""
    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        if scope["type"] == "http" and _is_foreign(dict(scope["headers"])):
            refusal = Response("this page belongs to another site", 403)
            await refusal(scope, receive, send_with)
            return
        await app(scope, receive, send_with)

    return serve


def _is_foreign(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser says that another site makes the request."""
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
        return True  # also of `null`: a file, or a frame without an origin of its own
    site = headers.get(b"sec-fetch-site", b"none")
    is_visit = headers.get(b"sec-fetch-mode") == b"navigate"
    return site not in (b"none", b"same-origin") and not is_visit
