"""Where a collection runs: in this process, or in workers on this machine or on the nodes of a Ray
cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...config.keys import CollectConfig
from ...config.load import Config
from ...launch.reach import Servers, reach
from ...types import Say
from .nodes import nodes_for


@asynccontextmanager
async def open_servers(config: Config[CollectConfig], say: Say) -> AsyncIterator[Servers]:
    """The servers of a collection, with workers that run the attempts if its command says so."""
    if config.command.executor == "local" or config.command.dry_run:
        async with reach(config, say, nodes=nodes_for(config)) as servers:
            yield servers
        return
    from .driver import cluster  # not needed in a single process

    async with cluster(config, say) as servers:
        yield servers
