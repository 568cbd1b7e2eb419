"""The routes of running collections, and the page that shows them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace
from starlette.requests import Request
from starlette.routing import Route

from ...analysis.pages.site import build_site, refusing
from ...serving.sockets import bind_page, url_of
from ...serving.transport.app import served
from ...types import Say
from .schema import HISTORY, LIVE, STEER, TURNS, Collections, SteerRequest, encode, read_request

PAGE = Path(__file__).parent / "page"


def routes_of(collections: Collections, sender: str = "") -> list[Route]:
    """The routes; `sender` names who asks, where a request does not."""

    async def live(request: Request) -> bytes:
        return encode(await collections.live())

    async def history(request: Request) -> bytes:
        run = request.query_params.get("run", "")
        return encode((await collections.ask(SteerRequest(run=run, history=True))).history)

    async def turns(request: Request) -> bytes:
        given = request.query_params
        since = int(text) if (text := given.get("since", "")).isdecimal() else 1
        watched = given.get("rollout", "")
        asked = SteerRequest(run=given.get("run", ""), watch=watched, since=since)
        return encode((await collections.ask(asked)).turns)

    async def steer(request: Request) -> bytes:
        asked = read_request(await request.body())
        return encode(await collections.ask(replace(asked, sender=asked.sender or sender)))

    return [
        Route(LIVE, refusing(live)),
        Route(HISTORY, refusing(history)),
        Route(TURNS, refusing(turns)),
        Route(STEER, refusing(steer), methods=["POST"]),
    ]


@asynccontextmanager
async def open_page(
    collections: Collections, sender: str, port: int, key: str, say: Say
) -> AsyncIterator[str]:
    """Context in which the page is served, for this user on this machine; `key` names the port."""
    sock = bind_page(key, port)
    url = url_of(sock)
    async with served(build_site(PAGE, routes_of(collections, sender)), sock):
        say(f"Live page: {url}", event="dashboard", url=url)
        yield url
