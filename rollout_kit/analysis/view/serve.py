"""Serves the pages on this machine, and takes in what is written to the files meanwhile."""

import asyncio
import webbrowser
from collections.abc import Callable
from urllib.parse import urlencode

from ...config.keys import ViewConfig
from ...errors import number_of
from ...serving.sockets import bind_page, url_of
from ...serving.transport.app import served
from ...store.filters.expression import parse
from .app import Viewer, build_app
from .dataset import Dataset

LOOK_S = 1.0
"""Time between two looks at the files."""


async def serve(command: ViewConfig, say: Callable[[str], None]) -> None:
    """Serve until cancelled; ConfigError if there is nothing to show, the filter cannot be read, or
    the port is taken."""
    if command.where.strip():
        parse(command.where)
    dataset = Dataset(command.inputs)
    sock = bind_page("port", command.port)
    viewer = Viewer(dataset, " ".join(command.inputs))
    asked = {name: getattr(command, name) for name in ("where", "search", "sort")}
    query = urlencode({name: value for name, value in asked.items() if value})
    url = f"{url_of(sock)}/" + (f"?{query}" if query else "")
    async with served(build_app(viewer), sock):
        say(f"{number_of(len(dataset.outputs), 'file')} of rollouts: {url}  (stop with Ctrl-C)")
        if command.open_browser:
            webbrowser.open(url)
        while True:
            await asyncio.to_thread(viewer.update)
            await asyncio.sleep(LOOK_S)
