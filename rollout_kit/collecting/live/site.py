"""The page of running collections: what it shows was computed before it is asked for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.routing import Route

from ...analysis.pages.site import build_site, read_json, refusing
from ...errors import ConfigError
from ...serving.sockets import bind_page, url_of
from ...serving.transport.app import served
from ...serving.transport.loop import beside
from ...types import JsonObject, Say
from . import client
from .control import Control, name_user
from .place import Note, read_notes
from .watcher import Watcher

PAGE = Path(__file__).parent / "page"

LOOK_S = 1.0

PATIENCE_S = 2.0
"""Time for a collection to answer; one that needs longer is asked again a second later."""


class Panel(Protocol):
    """What a page shows and takes."""

    @property
    def raw(self) -> bytes:
        """`{"collections": [snapshot, …], "servers": [server, …] or null, "problems": […]}`."""
        ...

    async def history(self, run_id: str) -> bytes: ...

    async def steer(self, run_id: str, asked: Any, is_dry: bool) -> JsonObject: ...


class OwnPanel:
    """That of the run in this process."""

    def __init__(self, control: Control, watcher: Watcher) -> None:
        self._control, self._watcher = control, watcher

    @property
    def raw(self) -> bytes:
        return b'{"collections":[' + self._watcher.raw + b'],"servers":null}'

    async def history(self, run_id: str) -> bytes:
        return self._watcher.history

    async def steer(self, run_id: str, asked: Any, is_dry: bool) -> JsonObject:
        changes = await self._control.steer(asked, f"{name_user()} (page)", is_dry=is_dry)
        return {"changes": changes, "state": self._control.state}


class SharedPanel:
    """That of all collections of this user on this machine, and of the servers of an `ng_run`.

    They are asked once a second, whatever number of pages is open.
    """

    def __init__(self, url: str, ask_servers: Callable[[], Awaitable[list[JsonObject]]]) -> None:
        self.raw = b'{"collections":[],"servers":[]}'
        self._url, self._ask_servers = url, ask_servers
        self._notes: dict[str, Note] = {}

    async def look(self) -> None:
        """Ask all of them, until cancelled."""
        while True:
            self.raw = await self._compute()
            await asyncio.sleep(LOOK_S)

    async def _compute(self) -> bytes:
        notes = await asyncio.to_thread(lambda: list(read_notes()))
        self._notes = {note.run_id: note for note in notes}
        found: dict[str, Any] = {"url": self._url, "problems": [], "collections": []}
        asked = (self._ask(note.run_id, {}, PATIENCE_S) for note in notes)
        for reply in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(reply, ConfigError):
                found["problems"].append(str(reply))
            elif not isinstance(reply, BaseException) and reply["snapshot"]:
                found["collections"].append(reply["snapshot"])
        try:
            found["servers"] = await self._ask_servers()
        except ConfigError as error:
            found |= {"servers": [], "problems": [*found["problems"], str(error)]}
        return orjson.dumps(found)

    async def history(self, run_id: str) -> bytes:
        reply = await self._ask(run_id, {"history": True})
        return orjson.dumps(reply["history"])

    async def steer(self, run_id: str, asked: Any, is_dry: bool) -> JsonObject:
        return await self._ask(
            run_id, {"steer": asked, "dry_run": is_dry, "from": "page of ng_status"}
        )

    async def _ask(
        self, run_id: str, request: JsonObject, timeout_s: float = client.ASK_S
    ) -> JsonObject:
        if (note := self._notes.get(run_id)) is None:
            raise ConfigError(f"the collection {run_id} does not run any more")
        return await asyncio.to_thread(client.ask, note, request, timeout_s)


@asynccontextmanager
async def open_page(panel: Panel, port: int, key: str, say: Say) -> AsyncIterator[str]:
    """Context in which the page is served, for this user on this machine; `key` names the port."""
    sock = bind_page(key, port)
    url = url_of(sock)
    async with served(_build_app(panel), sock):
        say(f"Live page: {url}", event="dashboard", url=url)
        yield url


@asynccontextmanager
async def shared_panel(
    url: str, ask_servers: Callable[[], Awaitable[list[JsonObject]]]
) -> AsyncIterator[SharedPanel]:
    """Context in which the panel is kept up to date."""
    panel = SharedPanel(url, ask_servers)
    async with beside(panel.look()):
        yield panel


def _build_app(panel: Panel) -> Any:
    async def show(request: Request) -> bytes:
        return panel.raw

    async def history(request: Request) -> bytes:
        return await panel.history(request.query_params.get("run", ""))

    async def steer(request: Request) -> JsonObject:
        asked = await read_json(request)
        if not isinstance(asked, dict):
            raise ConfigError("a request is a JSON object with `run` and `steer`")
        is_dry = bool(asked.get("dry_run"))
        return await panel.steer(str(asked.get("run")), asked.get("steer"), is_dry)

    routes = [
        Route("/api/live", refusing(show)),
        Route("/api/history", refusing(history)),
        Route("/api/steer", refusing(steer), methods=["POST"]),
    ]
    return build_site(PAGE, routes)
