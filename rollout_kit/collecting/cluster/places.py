"""Where a collection runs: in this process, or in workers on this machine or on the nodes of a Ray
cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from ...config.instance_keys import RAY
from ...config.keys import CollectConfig, RunConfig
from ...config.load import Config
from ...launch.placement import Nodes
from ...launch.reach import Servers, reach
from ...types import JsonObject, Say
from .leases import Leases


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers that are wanted. `invite` makes what a new worker needs to reach the driver."""

    number: int
    invite: Callable[[str], JsonObject]
    leases: Leases
    secrets: Collection[str]
    log_dir: Path | None
    say: Say


def nodes_for(config: Config[RunConfig] | Config[CollectConfig]) -> Nodes | None:
    """The nodes of a Ray cluster, if the configuration places servers there."""
    if all(each.placement != RAY for each in config.instances.values()):
        return None
    from .ray_servers import RayServers  # only where it is used

    return RayServers(config.command.ray_address)


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


class WorkerPlace(Protocol):
    """Context in which workers can be started."""

    host: str
    """The address under which workers reach this machine."""

    def num_workers(self) -> int:
        """As many as there is room for."""
        ...

    def start(self, crew: Crew) -> AbstractAsyncContextManager[list["asyncio.Task[str]"]]:
        """Context with the workers; its tasks end, with the reason, when a worker is given up."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...
